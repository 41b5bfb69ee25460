"""Records as they are learned: decoded text, with the targets told apart."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fttui.engine.data.records.formats import (
    CompletionRecord,
    MessagesRecord,
    PairRecord,
    PreferenceRecord,
    RatedRecord,
    Record,
    TextRecord,
)
from fttui.engine.data.tokenized import learner
from fttui.engine.data.tokens.examples import Example
from fttui.engine.data.tokens.sample import sample_records
from fttui.engine.data.tokens.tokenize import TokenizeOptions
from fttui.engine.protocol.data.sample import SampleRecord, SampleSpan
from tests.support.tokenizer import tiny_tokenizer

TURNS = ({"role": "user", "content": "Hi"}, {"role": "assistant", "content": "é\n  日"})


def sampled(record: Record, most: int | None = None, **options: Any) -> SampleRecord:
    tokenizer = tiny_tokenizer()
    learn = learner(tokenizer, TokenizeOptions(**{"max_length": 64, **options}))
    [found] = sample_records([record], learn, tokenizer, most_characters=most)
    return found


def marked(found: SampleRecord) -> dict[str, str]:
    """The texts by name, targets between « and »."""
    return {
        text.name: "".join(f"«{s.text}»" if s.learned else s.text for s in text.spans)
        for text in found.texts
    }


CHOSEN = CompletionRecord("r", "p", "good")
REJECTED = CompletionRecord("r", "p", "bad")


@pytest.mark.parametrize(
    ("record", "options", "expected"),
    [
        (TextRecord("t", "abc"), {}, {"text": "a«bc<|im_end|>»"}),
        (
            MessagesRecord("m", TURNS),
            {},
            {
                "text": "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
                "«é\n  日<|im_end|>»\n"
            },
        ),
        (
            PairRecord("p", "query", "answer", ("other", "third")),
            {"instruction": "find: ", "hard_negatives": 1},
            {
                "anchor": "find: «query<|im_end|>»",
                "positive": "«answer<|im_end|>»",
                "negative 1": "«other<|im_end|>»",
            },
        ),
        (
            PairRecord("p", "query", "answer", ("other", "third")),
            {"instruction": "find: ", "passage_instruction": "doc: ", "hard_negatives": 2},
            {
                "anchor": "find: «query<|im_end|>»",
                "positive": "doc: «answer<|im_end|>»",
                "negative 1": "doc: «other<|im_end|>»",
                "negative 2": "doc: «third<|im_end|>»",
            },
        ),
        (
            PreferenceRecord("r", CHOSEN, REJECTED),
            {},
            {"chosen": "p«good<|im_end|>»", "rejected": "p«bad<|im_end|>»"},
        ),
        (
            PreferenceRecord("r", replace(CHOSEN, prompt="ask "), REJECTED, margin=0.5),
            {"scored_whole": True},
            {"chosen, margin 0.5": "a«sk good<|im_end|>»", "rejected": "p«bad<|im_end|>»"},
        ),
        (RatedRecord("r", REJECTED, False), {}, {"undesirable": "p«bad<|im_end|>»"}),
        (RatedRecord("r", CHOSEN, True), {}, {"desirable": "p«good<|im_end|>»"}),
    ],
)
def test_targets_are_told_apart(
    record: Record, options: dict[str, Any], expected: dict[str, str]
) -> None:
    assert marked(sampled(record, **options)) == expected


def test_a_truncated_record_has_a_note_and_no_end() -> None:
    found = sampled(CompletionRecord("c", "prompt", "completion", place="d.jsonl:3"), max_length=9)
    assert found.place == "d.jsonl:3"
    assert found.notes == ["truncated to data.max_length"]
    assert marked(found) == {"text": "prompt«co»<|im_end|>"}


def test_a_dropped_record_has_a_note_and_no_text() -> None:
    found = sampled(CompletionRecord("c", "prompt", ""))
    assert found.texts == []
    assert found.notes == ["dropped: no target token is left (the record has no text to learn)"]


def test_long_texts_are_shortened() -> None:
    [text] = sampled(CompletionRecord("c", "prompt", "completion"), most=8).texts
    assert text.spans == [SampleSpan("prompt", False), SampleSpan("co", True)]
    assert text.left_out == len("promptcompletion<|im_end|>") - 8
    assert (text.tokens, text.learned) == (17, 11)


class Stripping:
    """A tokenizer that strips the first space of a text, and whose token 2 is half a character."""

    def decode(self, token_ids: list[int], **options: bool) -> str:
        text = "".join([" a", " b", "\ufffd", "é"][token] for token in token_ids)
        return text.replace("\ufffdé", "é").strip(" ")

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
        return [str(one) for one in ids]


@pytest.mark.parametrize(
    ("ids", "labels", "expected"),
    [
        ([0, 1, 0], [-100, 1, 0], [("a", False), (" b a", True)]),
        ([0, 2, 3], [-100, -100, 3], [("a\ufffd", False), ("é", True)]),
    ],
)
def test_text_that_depends_on_the_tokens_before_is_kept(
    ids: list[int], labels: list[int], expected: list[tuple[str, bool]]
) -> None:
    from fttui.engine.data.tokens.examples import TextExample

    def learn(record: Record, findings: object) -> list[Example]:
        return [TextExample("t", ids, labels)]

    [found] = sample_records([TextRecord("t", "")], learn, Stripping(), tokens=True)
    assert [(span.text, span.learned) for span in found.texts[0].spans] == expected
    assert [token.id for token in found.texts[0].token_list] == ids
