"""Preferences and ratings as token ids: what is a target, what is dropped, what is set against."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from fttui.engine.config.data_reasons import CUT, NO_TARGET, SAME_COMPLETIONS
from fttui.engine.data.batches.collate import collate_preferences, collate_rated
from fttui.engine.data.findings import Findings
from fttui.engine.data.records.formats import CompletionRecord, PreferenceRecord, RatedRecord
from fttui.engine.data.tokens.examples import IGNORED, PreferenceExample, RatedExample
from fttui.engine.data.tokens.tokenize import CHUNK, TokenizeOptions, tokenize_records
from tests.support.tokenizer import tiny_tokenizer

TOKENIZER = tiny_tokenizer()
EOS = "<|im_end|>"


def preference(name: str, prompt: str, chosen: str, rejected: str) -> PreferenceRecord:
    sides = (CompletionRecord(name, prompt, side) for side in (chosen, rejected))
    return PreferenceRecord(name, *sides)


def rating(name: str, prompt: str, completion: str, *, good: bool) -> RatedRecord:
    return RatedRecord(name, CompletionRecord(name, prompt, completion), good)


@dataclass
class Tokenized:
    """Examples, and what was noted while they were made."""

    examples: list[Any]
    findings: Findings


def tokenize(records: list[Any], **options) -> Tokenized:
    settings, findings = TokenizeOptions(**{"max_length": 100, **options}), Findings()
    made = tokenize_records(records, TOKENIZER, settings, findings, lambda done, total: None)
    return Tokenized(made, findings)


def whole(example) -> str:
    return TOKENIZER.decode(example.input_ids)


def targets(example) -> str:
    return TOKENIZER.decode([label for label in example.labels if label != IGNORED])


def test_only_completions_are_targets_whatever_is_asked_for() -> None:
    (example,) = tokenize([preference("a", "ask ", "good", "bad")], completion_only=False).examples
    assert isinstance(example, PreferenceExample)
    assert (whole(example.chosen), targets(example.chosen)) == (f"ask good{EOS}", f"good{EOS}")
    assert (whole(example.rejected), targets(example.rejected)) == (f"ask bad{EOS}", f"bad{EOS}")


def test_conversations_go_through_a_template_without_generation_marks() -> None:
    turns = ({"role": "user", "content": "hi"},)
    sides = [({"role": "assistant", "content": text},) for text in ("good", "bad")]
    record = PreferenceRecord("a", *(CompletionRecord("a", turns, side) for side in sides))
    (example,) = tokenize([record]).examples
    assert isinstance(example, PreferenceExample)
    assert targets(example.chosen) == f"good{EOS}"
    assert whole(example.rejected).startswith(f"<|im_start|>user\nhi{EOS}\n<|im_start|>assistant\n")


def test_what_cannot_be_learned_from_is_dropped_and_counted() -> None:
    result = tokenize(
        [
            preference("empty", "ask ", "good", ""),
            preference("long", "a prompt that is far too long ", "good", "bad"),
            preference("alike", "ask ", "same", "same"),
            preference("cut alike", "ask ", "the same and good", "the same and bad"),
            preference("fine", "ask ", "good", "bad"),
        ],
        max_length=14,
    )
    assert [example.id for example in result.examples] == ["fine"]
    assert [result.findings.count(why) for why in (NO_TARGET, SAME_COMPLETIONS, CUT)] == [2, 2, 2]


def test_a_rating_is_set_against_the_completion_of_another_record() -> None:
    records = [rating("a", "1 ", "one", good=True), rating("b", "2 ", "two", good=False)]
    first, second = tokenize(records).examples
    assert isinstance(first, RatedExample)
    assert isinstance(second, RatedExample)
    assert (first.desirable, second.desirable) == (True, False)
    assert whole(first.text) == f"1 one{EOS}"
    assert (whole(first.mismatched), targets(first.mismatched)) == (f"1 two{EOS}", f"two{EOS}")
    assert whole(second.mismatched) == f"2 one{EOS}"


def test_the_last_record_of_many_is_set_against_another_too() -> None:
    records = [rating(str(n), f"{n} ", f"word {n}", good=True) for n in range(CHUNK + 1)]
    last = tokenize(records).examples[-1]
    assert isinstance(last, RatedExample)
    assert whole(last.mismatched) == f"{CHUNK} word 0{EOS}"


def test_preferences_come_apart_into_ratings() -> None:
    records = [preference("a", "1 ", "one", "eins"), preference("b", "2 ", "two", "zwei")]
    examples = tokenize(records, rated=True).examples
    assert [(one.id, one.desirable) for one in examples] == [
        ("a", True),
        ("a", False),
        ("b", True),
        ("b", False),
    ]
    assert [whole(one.mismatched) for one in examples] == [
        *[f"1 two{EOS}"] * 2,
        *[f"2 one{EOS}"] * 2,
    ]


def test_a_batch_of_preferences_has_the_chosen_ones_first() -> None:
    records = [preference("a", "1 ", "one", "eins"), preference("b", "2 ", "two", "zwei")]
    batch = collate_preferences(tokenize(records).examples, 0)
    starts = [TOKENIZER.decode(row[:5]) for row in batch["input_ids"]]
    assert starts == ["1 one", "2 two", "1 ein", "2 zwe"]
    assert (batch["pair_count"], batch["ids"]) == (2, ["a", "b"])
    assert batch["labels"].shape == batch["attention_mask"].shape == batch["input_ids"].shape
    assert "margin" not in batch


def test_margins_reach_the_batch_with_the_order_of_their_pairs() -> None:
    records = [preference("a", "1 ", "one", "eins"), preference("b", "2 ", "two", "zwei")]
    graded = [replace(one, margin=margin) for one, margin in zip(records, (0.5, 2.0), strict=True)]
    examples: Any = tokenize(graded, scored_whole=True).examples
    assert collate_preferences(examples[::-1], 0)["margin"].tolist() == [2.0, 0.5]
    assert whole(examples[0].chosen) == targets(examples[0].chosen) == f"1 one{EOS}"


def test_a_batch_of_ratings_brings_what_they_are_set_against() -> None:
    records = [rating("a", "1 ", "one", good=True), rating("b", "2 ", "three", good=False)]
    batch = collate_rated(tokenize(records).examples, 0)
    assert batch["desirable"].tolist() == [True, False]
    assert TOKENIZER.decode(batch["mismatched"]["input_ids"][0]) == f"1 three{EOS}"
    assert set(batch["mismatched"]) == {"input_ids", "attention_mask", "labels"}
    assert batch["mismatched"]["labels"].dtype == torch.long
