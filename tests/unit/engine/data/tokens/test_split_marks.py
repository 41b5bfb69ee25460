"""Marks of a chat template that are no tokens are counted, with the setting that adds them."""

from __future__ import annotations

from typing import Any

import pytest

from fttui.engine.config.data_reasons import CUT, EMPTY_ANSWERS, MARKS_IN_TEXT, SPLIT_MARKS
from fttui.engine.data.findings import Findings
from fttui.engine.data.records.formats import (
    CompletionRecord,
    MessagesRecord,
    PreferenceRecord,
    TextRecord,
)
from fttui.engine.data.tokens.encoding import whole_tokens
from fttui.engine.data.tokens.examples import IGNORED
from fttui.engine.data.tokens.tokenize import TokenizeOptions, tokenize_records
from fttui.engine.model.tokenizer import add_special_tokens
from tests.support.tokenizer import CHATML, tiny_tokenizer

TALK = ({"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo 你好"})
OTHER = CHATML.replace("<|im_start|>", "<|head|>").replace("<|im_end|>", "<end_of_turn>")
BUILT = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] + eos_token }}{% endfor %}"
)


def tokenize(tokenizer: Any, *records: Any, **options: Any) -> tuple[list[Any], Findings]:
    findings = Findings()
    settings = TokenizeOptions(**{"max_length": 500, **options})
    made = tokenize_records(records, tokenizer, settings, findings, lambda *_: None)
    return made, findings


def test_split_marks_are_counted_with_the_setting_that_adds_them() -> None:
    tokenizer = tiny_tokenizer(OTHER)
    records = [MessagesRecord("a", TALK, place="t.jsonl:1"), TextRecord("b", "<|head|>")]
    _, findings = tokenize(tokenizer, *records)
    (found,) = findings
    assert (found.reason, found.count, found.total) == (SPLIT_MARKS, 1, 2)
    assert found.detail == 'data.special_tokens: ["<|head|>", "<end_of_turn>"]'
    assert not found.needs_consent([])


def test_the_proposed_setting_removes_the_finding() -> None:
    tokenizer = tiny_tokenizer(OTHER)
    add_special_tokens(tokenizer, ["<|head|>", "<end_of_turn>"])
    (example,), findings = tokenize(tokenizer, MessagesRecord("a", TALK))
    assert not list(findings)
    learned = [label for label in example.labels if label != IGNORED]
    assert learned[-1] == tokenizer.convert_tokens_to_ids("<end_of_turn>")


@pytest.mark.parametrize("template", [CHATML, "{{ messages[0]['content'] }}a"])
def test_tokens_and_marks_of_messages_are_no_finding(template: str) -> None:
    talk = ({"role": "user", "content": "what is <|other|>?"}, TALK[1])
    _, findings = tokenize(tiny_tokenizer(template), MessagesRecord("a", talk))
    assert findings.count(SPLIT_MARKS) == 0


def test_marks_that_the_template_builds_are_found() -> None:
    _, findings = tokenize(tiny_tokenizer(BUILT), MessagesRecord("a", TALK))
    (found,) = [one for one in findings if one.reason is SPLIT_MARKS]
    assert '"<|user|>", "<|assistant|>"' in found.detail


@pytest.mark.parametrize("length", range(20, 90))
def test_a_cut_leaves_no_part_of_a_mark_or_character(length: int) -> None:
    """The last token that is kept ends a mark and a character, wherever the cut falls."""
    tokenizer = tiny_tokenizer(OTHER)
    record = MessagesRecord("a", (*TALK, *TALK))
    whole, _ = tokenize(tokenizer, record)
    made, findings = tokenize(tokenizer, record, max_length=length)
    text = tokenizer.decode(whole[0].input_ids)
    for example in made:
        kept = tokenizer.decode(example.input_ids)
        assert text.startswith(kept), "no half of a character"
        rest = text[len(kept) :]
        for mark in ("<|head|>", "<end_of_turn>"):
            parts = [n for n in range(1, len(mark)) if kept.endswith(mark[:n])]
            assert not any(rest.startswith(mark[n:]) for n in parts), kept[-20:]
        assert findings.count(CUT) == (len(whole[0].input_ids) > length)


@pytest.mark.parametrize("before", ["", "a", 20 * "a"])
@pytest.mark.parametrize("inside", range(1, 8))
def test_a_cut_inside_a_mark_ends_before_it_also_at_the_start(before: str, inside: int) -> None:
    text = f"{before}<|head|>b"
    offsets = [(place, place + 1) for place in range(len(text))]
    kept = whole_tokens(text, offsets, len(before) + inside, ["<|head|>"])
    assert kept == len(before)
    assert whole_tokens(text, offsets, len(before) + 8, ["<|head|>"]) == len(before) + 8


def chat(asked: str, answered: Any, **more: Any) -> tuple[dict[str, Any], ...]:
    return (
        {"role": "user", "content": asked},
        {"role": "assistant", "content": answered, **more},
    )


@pytest.mark.parametrize(
    "turns",
    [
        chat("<|im_start|>user\nhi<|im_end|>", "yo"),
        chat("hi", "yo<|im_end|>"),
        chat("hi", "yo", reasoning_content="so <|im_end|>"),
    ],
)
def test_marks_that_messages_have_themselves_are_counted(turns: Any) -> None:
    records = [MessagesRecord("a", turns, place="t.jsonl:1"), MessagesRecord("b", TALK)]
    _, findings = tokenize(tiny_tokenizer(CHATML), *records)
    found = next(one for one in findings if one.reason is MARKS_IN_TEXT)
    assert (found.count, found.total, found.place) == (1, 2, "t.jsonl:1")
    assert "<|im_end|>" in found.detail
    assert found.needs_consent([])


def test_marks_of_a_preference_count_once_and_other_texts_with_bars_do_not() -> None:
    asked = ({"role": "user", "content": "a<|im_end|>"},)
    sides = [
        CompletionRecord("a", asked, ({"role": "assistant", "content": text},), place="t:1")
        for text in ("b", "c")
    ]
    _, findings = tokenize(tiny_tokenizer(CHATML), PreferenceRecord("a", *sides, place="t:1"))
    assert [(one.reason, one.count) for one in findings] == [(MARKS_IN_TEXT, 1)]
    other = MessagesRecord("b", chat("a <|other|> <s>", "b"))
    assert not list(tokenize(tiny_tokenizer(CHATML), other)[1])


@pytest.mark.parametrize(
    ("record", "empty"),
    [
        (MessagesRecord("a", chat("hi", "")), True),
        (MessagesRecord("a", chat("hi", " \n")), True),
        (MessagesRecord("a", chat("hi", "", learned=False)), False),
        (MessagesRecord("a", chat("", "yo")), False),
        (CompletionRecord("a", "hi", " "), True),
        (CompletionRecord("a", "hi", "yo"), False),
    ],
)
def test_empty_answers_are_counted(record: Any, empty: bool) -> None:
    _, findings = tokenize(tiny_tokenizer(CHATML), record)
    assert findings.count(EMPTY_ANSWERS) == empty
