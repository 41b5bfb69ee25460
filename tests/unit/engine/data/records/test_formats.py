from __future__ import annotations

import pytest

from fttui.engine.data.records.formats import (
    CompletionRecord,
    MessagesRecord,
    PairRecord,
    PreferenceRecord,
    RatedRecord,
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
        (["prompt", "chosen", "rejected"], "preference"),
        (["chosen", "rejected"], "preference"),
        (["prompt", "completion", "label"], "prompt_completion"),
        (["anchor", "negative"], None),
        ([], None),
    ],
)
def test_format_follows_from_the_columns(columns, expected):
    assert detect_format(columns) == expected


def test_the_task_decides_where_columns_make_several_formats():
    assert detect_format(["prompt", "completion", "label"], "kto") == "rated"
    assert detect_format(["prompt", "completion", "label"], "sft") == "prompt_completion"
    assert detect_format(["prompt", "chosen", "rejected", "completion", "label"], "kto") == "rated"
    assert detect_format(["prompt", "chosen", "rejected", "completion"], "dpo") == "preference"
    assert detect_format(["text"], "dpo") == "text"


ANSWERS = [{"role": "assistant", "content": "good"}], [{"role": "assistant", "content": "bad"}]


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": [TURN], "chosen": ANSWERS[0], "rejected": ANSWERS[1]},
        {"chosen": [TURN, *ANSWERS[0]], "rejected": [TURN, *ANSWERS[1]]},
        {"prompt": "hi", "chosen": [TURN, *ANSWERS[0]], "rejected": [TURN, *ANSWERS[1]]},
    ],
)
def test_a_preference_of_conversations_has_a_prompt_and_two_answers(row):
    record = to_record(row, "preference", "i", "p")
    assert isinstance(record, PreferenceRecord)
    assert record.chosen == CompletionRecord("i", (TURN,), tuple(ANSWERS[0]))
    assert record.rejected == CompletionRecord("i", (TURN,), tuple(ANSWERS[1]))


def test_a_preference_of_texts_needs_a_prompt():
    row = {"prompt": "a", "chosen": "b", "rejected": "c"}
    record = to_record(row, "preference", "i", "p")
    assert isinstance(record, PreferenceRecord)
    assert (record.chosen.prompt, record.chosen.completion) == ("a", "b")
    assert (record.rejected.prompt, record.rejected.completion) == ("a", "c")
    with pytest.raises(DataError, match="f:3: no column prompt; found chosen, rejected"):
        to_record({"chosen": "b", "rejected": "c"}, "preference", "i", "f:3")


def test_a_rating_is_yes_or_no():
    row = {"prompt": "a", "completion": "b", "label": 1}
    good, bad = (to_record({**row, "label": x}, "rated", "i", "p") for x in (1, False))
    assert isinstance(good, RatedRecord)
    assert isinstance(bad, RatedRecord)
    assert (good.desirable, bad.desirable) == (True, False)
    for label in (None, "good", 2):
        with pytest.raises(DataError, match=r"f:3: column 'label': got .*, expected true or false"):
            to_record({**row, "label": label}, "rated", "i", "f:3")


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
        ({"prompt": "x", "completion": None}, "prompt_completion", "column 'completion'"),
        ({"anchor": "a", "positive": 4}, "pairs", "text or a list of texts"),
        ({"anchor": "a", "positive": [4]}, "pairs", "got int"),
    ],
)
def test_a_wrong_row_is_named(row, form, message):
    with pytest.raises(DataError, match=message):
        to_record(row, form, "i", "d.jsonl:3")
