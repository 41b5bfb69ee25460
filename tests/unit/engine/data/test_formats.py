from __future__ import annotations

import pytest

from fttui.engine.data.formats import (
    CompletionRecord,
    MessagesRecord,
    PairRecord,
    TextRecord,
    detect_format,
    label_number,
    to_record,
)
from fttui.engine.errors import DataError

TURN = {"role": "user", "content": "hi"}


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        (["id", "messages"], "messages"),
        (["prompt", "completion", "answer"], "prompt_completion"),
        (["anchor", "positive"], "pairs"),
        (["query", "pos", "neg"], "pairs"),
        (["query", "document"], "pairs"),
        (["sentence1", "sentence2", "label"], "pairs"),
        (["text", "label"], "text"),
        (["prompt", "chosen", "rejected"], None),
        (["anchor", "negative"], None),
        ([], None),
    ],
)
def test_format_follows_from_the_columns(columns, expected):
    assert detect_format(columns) == expected


def test_each_format_becomes_its_record():
    assert to_record({"text": "a"}, "text", "f:1", "f:1") == TextRecord("f:1", "a")
    assert to_record({"messages": [TURN], "id": 7}, "messages", "f:1", "f:1") == MessagesRecord(
        "7", (TURN,)
    )
    assert to_record({"prompt": "a", "completion": "b"}, "prompt_completion", "i", "p") == (
        CompletionRecord("i", "a", "b")
    )
    chat = {"prompt": [TURN], "completion": [{"role": "assistant", "content": "yo"}]}
    assert to_record(chat, "prompt_completion", "i", "p") == CompletionRecord(
        "i", (TURN,), ({"role": "assistant", "content": "yo"},)
    )


@pytest.mark.parametrize(
    ("row", "negatives"),
    [
        ({"negative": "n"}, ("n",)),
        ({"negatives": ["n", "m"]}, ("n", "m")),
        ({"negative_1": "n", "negative_2": "m"}, ("n", "m")),
        ({"negative": None}, ()),
        ({"negative": ""}, ()),
        ({"negative": "n", "negative_label": "x"}, ("n",)),
        ({}, ()),
    ],
)
def test_negatives_come_one_or_many(row, negatives):
    record = to_record({"anchor": "a", "positive": "p", **row}, "pairs", "i", "p")
    assert record == PairRecord("i", "a", "p", negatives)


@pytest.mark.parametrize(("given", "used"), [(0, "0"), ("x", "x"), ("", "f:3"), (None, "f:3")])
def test_id_column_names_the_record(given, used):
    assert to_record({"text": "a", "id": given}, "text", "f:3", "p").id == used


def test_first_of_several_positives_is_used():
    record = to_record({"query": "q", "pos": ["p1", "p2"], "neg": []}, "pairs", "i", "p")
    assert record == PairRecord("i", "q", "p1")


def test_labels_are_equal_exactly_when_they_look_equal():
    assert label_number("refund") == label_number("refund") != label_number("card")
    assert label_number(3) == label_number("3")
    assert label_number(0) is not None
    assert label_number(None) is None
    number = label_number("refund")
    assert number is not None
    assert 0 <= number < 2**63


@pytest.mark.parametrize(
    ("row", "form", "message"),
    [
        ({"text": None}, "text", r"d.jsonl:3: column 'text': got null, expected text"),
        ({"text": 5}, "text", r"got int '5', expected text"),
        ({"body": "x"}, "text", r"d.jsonl:3: no column text; found body"),
        ({"messages": "hi"}, "messages", "expected a list of"),
        ({"messages": [{"content": "x"}]}, "messages", "expected {role, content}"),
        ({"messages": [{"role": "user", "content": [1]}]}, "messages", "both text"),
        ({"prompt": "x", "completion": None}, "prompt_completion", "column 'prompt'"),
        ({"anchor": "a", "positive": 4}, "pairs", "text or a list of texts"),
        ({"anchor": "a", "positive": [4]}, "pairs", "got int"),
    ],
)
def test_a_wrong_row_is_named(row, form, message):
    with pytest.raises(DataError, match=message):
        to_record(row, form, "i", "d.jsonl:3")
