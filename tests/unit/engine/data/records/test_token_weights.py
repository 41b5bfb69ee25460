"""Tokenized records, and weights of tokens and of ranges of characters."""

from __future__ import annotations

from typing import Any

import pytest

from fttui.engine.config.data_reasons import WEIGHTED
from fttui.engine.config.tasks import Format
from fttui.engine.data.findings import Findings
from fttui.engine.data.records.formats import detect_format, to_record
from fttui.engine.data.tokenized import learner
from fttui.engine.data.tokens.examples import TextExample
from fttui.engine.data.tokens.sample import sample_records
from fttui.engine.data.tokens.tokenize import TokenizeOptions
from fttui.engine.errors import DataError
from tests.support.tokenizer import tiny_tokenizer

IDS = [5, 6, 7, 8]


def learned(values: dict[str, Any], form: Format, **options: Any) -> TextExample:
    record = to_record(values, form, "r", "a.jsonl:3")
    learn = learner(tiny_tokenizer(), TokenizeOptions(**{"max_length": 64, **options}))
    (example,) = learn(record, Findings())
    assert isinstance(example, TextExample)
    return example


@pytest.mark.parametrize(
    ("columns", "ids", "labels", "weights"),
    [
        ({}, IDS, IDS, None),
        ({"labels": [-100, -100, 7, 8]}, IDS, [-100, -100, 7, 8], None),
        ({"completion_mask": [0, 1, 1, 1]}, IDS, [-100, 6, 7, 8], None),
        (
            {"completion_mask": [0, 1, 1, 1], "assistant_masks": [0, 0, 1, 1]},
            IDS,
            [-100, -100, 7, 8],
            None,
        ),
        ({"attention_mask": [0, 1, 1, 1], "weights": [9, 1, 0.5, 2]},
         [6, 7, 8], [6, 7, 8], (1, 0.5, 2)),
        ({"weights": "[1, 1, 1, 0.5]", "weight": 2}, IDS, IDS, (2, 2, 2, 1)),
        ({"weights": [1, 1, 1, 1]}, IDS, IDS, None),
    ],
)  # fmt: skip
def test_a_tokenized_record_is_learned_as_it_is(
    columns: dict[str, Any], ids: list[int], labels: list[int], weights: tuple[float, ...] | None
) -> None:
    example = learned({"input_ids": IDS, **columns}, "tokens")
    assert (example.input_ids, example.labels, example.weights) == (ids, labels, weights)
    assert example.place == "a.jsonl:3"


def test_a_tokenized_record_is_truncated_and_learned_whole_on_request() -> None:
    columns = {"input_ids": IDS, "labels": [-100, -100, 7, 8], "weights": [1, 2, 3, 4]}
    example = learned(columns, "tokens", max_length=3, completion_only=False)
    assert (example.labels, example.weights) == ([5, 6, 7], (1, 2, 3))


def test_columns_of_text_come_before_those_of_tokens() -> None:
    assert detect_format(["input_ids", "labels"], "sft") == "tokens"
    assert detect_format(["text", "input_ids"], "sft") == "text"


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"input_ids": "abc"}, "'input_ids': got abc, expected a list of token ids"),
        ({"input_ids": [3, -1]}, "expected a list of token ids"),
        ({"labels": [1, 2]}, "'labels': got [1, 2], expected 4 values, one for each of input_ids"),
        ({"weights": [1, 1, 1]}, "'weights': got [1, 1, 1], expected 4 values"),
        ({"weights": [1, 1, 1, -1]}, "got -1, expected a finite weight of 0 or more"),
        ({"weights": 2}, "expected a list of one weight per token"),
    ],
)
def test_columns_that_do_not_fit_the_tokens_are_refused(
    columns: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError) as refused:
        learned({"input_ids": IDS, **columns}, "tokens")
    assert str(refused.value).startswith("a.jsonl:3: column ")
    assert message in str(refused.value)


def test_ranges_of_characters_are_factors_on_the_tokens_that_begin_there() -> None:
    row = {"prompt": "ab", "completion": "cdef", "weights": [[1, 2, 0], [2, 4, 2.5]], "weight": 2}
    example = learned(row, "prompt_completion")
    given = list(example.weights or ())
    assert given[2:] == [2, 0, 5, 5, 2], "the EOS has the weight of the record"
    ranges: list[Any] = [[0, 2, 3]]
    found = [
        learned({"text": "abcd", "weights": given}, "text").weights for given in (ranges, None)
    ]
    assert found == [(3, 3, 1, 1, 1), None]


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([[0, 5, 1]], "[0, 5, 1], expected a range within the 4 characters of the text"),
        ([[2, 2, 1]], "expected a range within"),
        ([[0, 3, 1], [2, 4, 2]], "expected ranges that do not overlap; [0, 3, 1.0] does"),
        ([[0, 1]], "expected [first character, end, weight]"),
        ([0.5, 1], "expected [first character, end, weight]"),
        (3, "expected a list of [first character, end, weight]"),
        ([[0, 1, "much"]], "expected a finite weight of 0 or more"),
    ],
)
def test_wrong_ranges_are_refused_with_the_way_out(weights: Any, message: str) -> None:
    with pytest.raises(DataError) as refused:
        learned({"text": "abcd", "weights": weights}, "text")
    assert message in str(refused.value)
    assert "data.columns: {weights: null}" in str(refused.value)


def test_messages_take_weights_at_their_turns() -> None:
    turns = [{"role": "user", "content": "a"}]
    row = {"prompt": turns, "completion": [{"role": "assistant", "content": "b"}]}
    with pytest.raises(DataError, match="whose turns may have a weight"):
        learned({**row, "weights": [[0, 1, 2]]}, "prompt_completion")


def test_weights_are_counted_and_shown() -> None:
    tokenizer, findings = tiny_tokenizer(), Findings()
    learn = learner(tokenizer, TokenizeOptions(max_length=64))
    record = to_record({"text": "abcd", "weights": [[2, 3, 0.5]]}, "text", "r", "a.jsonl:1")
    learn(record, findings)
    assert [one.reason for one in findings] == [WEIGHTED]
    (shown,) = sample_records([record], learn, tokenizer, tokens=True)
    (text,) = shown.texts
    assert [(one.text, one.mark) for one in text.spans] == [
        ("a", ""), ("b", ""), ("c", " ×0.5"), ("d<|im_end|>", "")
    ]  # fmt: skip
    assert [one.weight for one in text.token_list] == [1, 1, 0.5, 1, 1]
    masked = {"input_ids": IDS, "labels": [-100, -100, 7, 8], "weights": [0, 0, 1, 1]}
    learn(to_record(masked, "tokens", "r", "a.jsonl:2"), findings)
    assert [one.count for one in findings] == [1], "weights of tokens that are no targets"
