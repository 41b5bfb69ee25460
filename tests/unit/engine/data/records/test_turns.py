from __future__ import annotations

import pytest

from fttui.engine.data.records.formats import MessagesRecord, detect_format, to_record
from fttui.engine.errors import DataError

TURNS = ({"role": "user", "content": "Is it late?"}, {"role": "assistant", "content": "No."})


@pytest.mark.parametrize(
    "row",
    [
        {"instruction": "Is it late?", "input": "", "output": "No."},
        {"instruction": "Is it late?", "context": None, "response": "No."},
        {"instruction": "Is it late?", "output": "No."},
        {"question": "Is it late?", "answer": "No."},
        {"query": "Is it late?", "response": "No.", "type": "x"},
        {"prompt": "Is it late?", "response": "No."},
        {"input": "Is it late?", "output": "No."},
        {
            "conversations": [
                {"from": "human", "value": "Is it late?"},
                {"from": "gpt", "value": "No."},
            ]
        },
        {"conversation": list(TURNS)},
    ],
)
def test_questions_and_answers_are_conversations(row):
    assert detect_format(row, "sft") == "messages"
    assert to_record(row, "messages", "i", "p") == MessagesRecord("i", TURNS)


def test_an_input_continues_the_instruction_on_its_own_line():
    row = {"instruction": "Add.", "input": "1 2", "output": "3"}
    record = to_record(row, "messages", "i", "p")
    assert isinstance(record, MessagesRecord)
    assert record.messages[0]["content"] == "Add.\n1 2"


@pytest.mark.parametrize(
    "row",
    [
        {"question": "a", "context": "b", "answer": "c"},
        {"problem": "a", "solution": "b", "answer": "c"},
        {"question": "a", "prompt": "b", "answer": "c"},
    ],
)
def test_columns_of_two_meanings_are_not_guessed(row):
    assert detect_format(row, "sft") != "messages"


def test_formats_known_before_stay_as_they_were():
    assert detect_format(["prompt", "completion"], "sft") == "prompt_completion"
    assert detect_format(["text", "instruction", "output"], "sft") == "text"
    assert detect_format(["question", "answer"], "contrastive") == "pairs"


def test_an_unknown_role_is_named():
    row = {"conversations": [{"from": "narrator", "value": "x"}]}
    with pytest.raises(DataError, match=r"d.jsonl:3: .*the role 'narrator' is unknown"):
        to_record(row, "messages", "i", "d.jsonl:3")
