"""Generated rows of every known form, with columns renamed by `data.columns`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fttui.engine.data.records.formats import (
    CompletionRecord,
    MessagesRecord,
    PairRecord,
    PreferenceRecord,
    RatedRecord,
    Record,
    TextRecord,
    label_number,
)
from fttui.engine.data.records.row_checks import MISSING
from fttui.engine.errors import DataError

from .test_reader import Reading

TEXT = (
    st.text(max_size=11).filter(lambda text: text.strip() not in MISSING)
    | st.sampled_from(["", " ", "\n\t", "«é»", "\u00a0x", "{a}", "a\r\nb"])
)  # fmt: skip
FILLED = TEXT.filter(str.strip)
NAMES = st.lists(
    st.text("abcdeÄß 日{}._-", min_size=3, max_size=8).map(lambda name: f"c {name}"),
    min_size=8, max_size=8, unique=True,
)  # fmt: skip
SCHEMA = {"name": "f", "parameters": {"type": "object", "properties": {}}}
TOOLS = ({"type": "function", "function": SCHEMA},)


@dataclass(frozen=True)
class Case:
    """A row under the names of the formats, the columns that may be renamed, and its record."""

    task: str
    row: dict[str, Any]
    fields: tuple[str, ...]
    record: Record
    settings: tuple[tuple[str, Any], ...] = ()


def turn(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


@st.composite
def dialogues(draw: st.DrawFn) -> tuple[list[dict[str, Any]], tuple[dict[str, Any], ...]]:
    """Turns as one of the tools writes them, and as templates take them."""
    texts = draw(st.lists(TEXT, min_size=2, max_size=6).filter(lambda found: len(found) % 2 == 0))
    roles, key, content = draw(
        st.sampled_from(
            [
                (("user", "assistant"), "role", "content"),
                (("human", "gpt"), "from", "value"),
                (("Human", "Chatbot"), "speaker", "text"),
                (("prompter", "model"), "role", "text"),
            ]
        )
    )
    padding = draw(st.sampled_from([{}, {"tool_calls": None}, {"name": None, "weight": None}]))
    stored = [{key: roles[n % 2], content: text, **padding} for n, text in enumerate(texts)]
    return stored, tuple(turn(("user", "assistant")[n % 2], text) for n, text in enumerate(texts))


@st.composite
def conversations(draw: st.DrawFn) -> Case:
    stored, turns = draw(dialogues())
    row: dict[str, Any] = {"messages": stored}
    if draw(st.booleans()):
        row["history"] = [["h", "i"]]
        turns = (turn("user", "h"), turn("assistant", "i"), *turns)
    if draw(st.booleans()):
        row["system"] = draw(FILLED)
        turns = (turn("system", row["system"]), *turns)
    tools = draw(st.sampled_from([None, [SCHEMA], list(TOOLS)]))
    row |= {"tools": tools}
    record = MessagesRecord("d:1", turns, tools=TOOLS if tools else ())
    return Case("sft", row, ("messages", "history", "system", "tools"), record)


@st.composite
def instructions(draw: st.DrawFn) -> Case:
    asked, answer = draw(TEXT), draw(TEXT)
    more = draw(st.none() | TEXT)
    content = "\n".join(text for text in (asked, more) if text)
    record = MessagesRecord("d:1", (turn("user", content), turn("assistant", answer)))
    row = {"instruction": asked, "input": more, "output": answer}
    return Case("sft", row, ("instruction", "input", "output"), record)


@st.composite
def texts(draw: st.DrawFn) -> Case:
    one, other = draw(TEXT), draw(TEXT)
    if draw(st.booleans()):
        return Case("sft", {"text": one}, ("text",), TextRecord("d:1", one))
    row = {"prompt": one, "completion": other}
    return Case("sft", row, ("prompt", "completion"), CompletionRecord("d:1", one, other))


@st.composite
def preferences(draw: st.DrawFn) -> Case:
    _, turns = draw(dialogues())
    prompt, good, bad = turns[:-1], draw(TEXT), draw(TEXT)
    sides = (turn("assistant", good),), (turn("assistant", f"{good}{bad}x"),)
    row: dict[str, Any] = draw(
        st.sampled_from(
            [
                {"prompt": list(prompt), "chosen": list(sides[0]), "rejected": list(sides[1])},
                {"chosen": [*prompt, *sides[0]], "rejected": [*prompt, *sides[1]]},
                {"messages": list(prompt), "chosen": good, "rejected": sides[1][0]},
                {"messages": [*prompt, *sides[0]], "rejected": sides[1][0]["content"]},
            ]
        )
    )
    fields = ("prompt", "chosen", "rejected", "messages")
    record = PreferenceRecord("d:1", *(CompletionRecord("d:1", prompt, one) for one in sides))
    return Case("dpo", row, fields, record)


@st.composite
def ratings(draw: st.DrawFn) -> Case:
    _, turns = draw(dialogues())
    good, bad_one = (True, 1, "Thumbs_Up", "1.0"), (False, 0, -1, "bad")
    label, desirable = draw(
        st.sampled_from([(one, True) for one in good] + [(one, False) for one in bad_one])
    )
    text = CompletionRecord("d:1", turns[:-1], turns[-1:])
    row: dict[str, Any] = draw(
        st.sampled_from(
            [
                {"prompt": list(turns[:-1]), "completion": list(turns[-1:]), "label": label},
                {"messages": list(turns), "label": label},
            ]
        )
    )
    fields = ("prompt", "completion", "messages", "label")
    return Case("kto", row, fields, RatedRecord("d:1", text, desirable))


@st.composite
def pairs(draw: st.DrawFn) -> Case:
    one, other = draw(TEXT), draw(TEXT)
    negatives = draw(st.none() | st.lists(FILLED, max_size=3))
    negatives = negatives and [text for text in negatives if text not in (one, other)]
    label, score = draw(st.none() | st.integers(0, 5)), draw(st.none() | st.floats(-1, 1))
    row = {"anchor": one, "positive": other, "negatives": negatives, "label": label, "score": score}
    number = None if label is None else label_number(label)
    record = PairRecord("d:1", one, other, tuple(negatives or ()), number, score=score)
    return Case("contrastive", row, tuple(row), record, (("label", "class"),))


CASES = conversations() | instructions() | texts() | preferences() | ratings() | pairs()


@given(CASES, NAMES, st.lists(st.booleans(), min_size=8, max_size=8))
def test_renamed_columns_make_the_record_of_the_canonical_ones(
    case: Case, names: list[str], renamed: list[bool]
) -> None:
    chosen = {
        field: name
        for field, name, wanted in zip(case.fields, names, renamed, strict=False)
        if wanted and field in case.row
    }
    row = {chosen.get(field, field): value for field, value in case.row.items()}
    for columns, values in (({}, case.row), (chosen, row)):
        result = Reading(case.task, [values], columns=columns, **dict(case.settings))
        assert result.records == [case.record]
        assert [one.detail for one in result.findings] == []


KNOWN = (
    *("text", "prompt", "completion", "instruction", "input", "context", "output", "response"),
    *("question", "query", "answer", "answers", "problem", "solution", "system", "system_prompt"),
    *("chosen", "rejected", "rejected_response", "chosen_response", "response_0", "response_1"),
    *("anchor", "positive", "negative", "negatives", "negative_1", "passage", "document", "pos"),
    *("sentence1", "sentence2", "question1", "question2", "premise", "hypothesis", "text1"),
    *("id", "source", "reasoning", "title", "url", "kto_tag", "sentence3", "neg"),
)
"""Columns of texts that the formats or other tools use."""
LISTED = ("messages", "conversations", "conversation", "history", "prompt", "chosen", "rejected")
"""Columns that may hold messages."""


FORMS = {
    "sft": (
        *(("messages",), ("conversations",), ("instruction", "input", "output"), ("text",)),
        *(("question", "answer"), ("prompt", "completion"), ("prompt", "response")),
    ),
    "dpo": (
        *(("prompt", "chosen", "rejected"), ("question", "chosen", "rejected")),
        *(("messages", "chosen", "rejected"), ("conversations", "rejected_response")),
        *(("chosen", "rejected"), ("instruction", "input", "chosen", "rejected")),
    ),
    "kto": (
        *(
            ("prompt", "completion", "label"),
            ("messages", "label"),
            ("question", "answer", "label"),
        ),
        *(("instruction", "output", "kto_tag"), ("prompt", "chosen", "rejected")),
    ),
    "contrastive": (
        *(("anchor", "positive"), ("query", "pos", "neg"), ("sentence1", "sentence2")),
        *(("question1", "question2"), ("premise", "hypothesis"), ("question", "answer")),
    ),
}
"""Columns that make a record of a task."""


@st.composite
def mixtures(draw: st.DrawFn, task: str) -> dict[str, Any]:
    """A row with the columns of a record and any others, each with a text of its own."""
    names = [*draw(st.sampled_from(FORMS[task]))]
    names += draw(st.lists(st.sampled_from(KNOWN), max_size=4))
    row: dict[str, Any] = {name: f"«{name}»" for name in names}
    likely = [name for name in LISTED if name in row]
    for name in draw(st.lists(st.sampled_from(likely or LISTED), max_size=3)):
        asked, answer = turn("user", f"«{name}»"), turn("assistant", f"«{name}»")
        row[name] = draw(st.sampled_from([[asked], [asked, answer], [answer], answer]))
    return row | {name: True for name in ("label", "kto_tag") if name in row and task == "kto"}


@pytest.mark.parametrize("task", ["sft", "dpo", "kto", "contrastive"])
@given(data=st.data(), format=st.sampled_from(["auto", "auto", "messages"]))
def test_no_column_is_left_out_in_silence(task: str, data: st.DataObject, format: str) -> None:
    row = data.draw(mixtures(task))
    try:
        result = Reading(task, [row], format=format)
    except DataError:
        return  # refused, not silent
    told = {name for one in result.findings for name in one.detail.split(", ")}
    if any(one.reason.name == "prompt-ignored" for one in result.findings):
        told.add("prompt")
    for name, value in row.items():
        if value is not True:
            assert f"«{name}»" in str(result.records) or name in told, (name, result.records, told)
