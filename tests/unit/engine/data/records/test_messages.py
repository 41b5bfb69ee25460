from __future__ import annotations

import datetime
import decimal
import json

import pytest

from fttui.engine.data.records.formats import MessagesRecord, to_record
from fttui.engine.data.records.messages import decoded, parse_messages, tools_of
from fttui.engine.errors import DataError

SCHEMA = {"name": "dew", "parameters": {"type": "object", "properties": {}}}
TOOL = {"type": "function", "function": SCHEMA}
CALL = {"type": "function", "function": {"name": "dew", "arguments": {"at": 3}}}


def read(*items, place="d.jsonl:3"):
    return parse_messages(list(items), "messages", place)


def test_pairs_in_an_item_are_two_turns():
    expected = ({"role": "user", "content": "a"}, {"role": "assistant", "content": "b"})
    assert read({"human": "a", "assistant": "b"}) == expected
    assert read({"input": "a", "output": "b"}) == expected
    system = {"role": "system", "content": "s"}
    assert read({"system": "s", "input": "a", "output": "b"}) == (system, *expected)


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("human", "user"),
        ("GPT", "assistant"),
        ("model", "assistant"),
        ("observation", "tool"),
        ("developer", "system"),
    ],
)
def test_roles_of_other_tools_are_known(name, role):
    assert read({"from": name, "value": "x"}) == ({"role": role, "content": "x"},)


@pytest.mark.parametrize(
    "item",
    [
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {
            "role": "assistant",
            "tool_calls": [{**CALL, "function": {"name": "dew", "arguments": '{"at": 3}'}}],
        },
        {"role": "assistant", "function_call": {"name": "dew", "arguments": '{"at": 3}'}},
        {"from": "function_call", "value": '{"name": "dew", "arguments": {"at": 3}}'},
    ],
)
def test_tool_calls_have_arguments_as_a_mapping(item):
    assert read(item) == ({"role": "assistant", "tool_calls": [CALL]},)


def test_nulls_that_pad_columnar_files_are_removed():
    padded = {"function": {"name": "dew", "arguments": {"at": 3, "to": None}}, "type": "function"}
    item = {"role": "assistant", "tool_calls": [padded]}
    assert read(item, place="d.parquet row 1") == ({"role": "assistant", "tool_calls": [CALL]},)
    assert read(item)[0]["tool_calls"][0]["function"]["arguments"] == {"at": 3, "to": None}


@pytest.mark.parametrize("tools", [[TOOL], [SCHEMA], json.dumps([TOOL]), json.dumps([SCHEMA])])
def test_tools_reach_the_record(tools):
    row = {"messages": [{"role": "user", "content": "a"}], "tools": tools}
    record = to_record(row, "messages", "i", "d.jsonl:3")
    assert isinstance(record, MessagesRecord)
    assert record.tools == (TOOL,)


def test_parts_of_text_are_joined_and_others_refused():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert read({"role": "user", "content": parts})[0]["content"] == "ab"
    worded = [{"type": "text", "value": "a"}, {"type": "text", "value": "b"}]
    assert read({"role": "user", "content": worded})[0]["content"] == "ab"
    with pytest.raises(DataError, match=r"d.jsonl:3: .*text only"):
        read({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]})


@pytest.mark.parametrize("key", ["image", "images", "image_url", "audio_path", "video_urls"])
def test_media_under_a_key_of_a_message_or_a_part_are_refused(key):
    with pytest.raises(DataError, match="a message has images, audio or video"):
        read({"role": "user", "content": "a", key: "a.jpg"})
    with pytest.raises(DataError, match="a message has a part with images, audio or video"):
        read({"role": "user", "content": [{"text": "a", key: {"url": "a.jpg"}}]})
    assert read({"role": "user", "content": [{"text": "a", key: None}], key: []})


@pytest.mark.parametrize("more", [{"value": "b"}, {"text": "b"}, {"message": "b"}, {"from": "gpt"}])
def test_a_message_with_two_texts_or_roles_is_refused(more):
    with pytest.raises(DataError, match="expected one role and one text in a message"):
        read({"role": "user", "content": "a", **more})


@pytest.mark.parametrize(
    "more", [{"value": "a"}, {"text": None}, {"from": "human"}, {"author": "Bob"}]
)
def test_a_second_key_that_says_the_same_is_accepted(more):
    assert read({"role": "user", "content": "a", **more})[0]["content"] == "a"


def test_a_text_beside_null_content_is_read():
    assert read({"role": "user", "content": None, "text": "b"})[0]["content"] == "b"


@pytest.mark.parametrize("key", ["mask", "masked", "ignore", "train_detail"])
def test_a_mask_of_another_meaning_is_refused(key):
    one = {"role": "assistant", "content": "a"}
    with pytest.raises(DataError, match=f"expected no {key}; write weight: 0"):
        read({**one, key: [1]})
    assert read({**one, key: None}) == (one,)


def test_a_turn_of_weight_zero_is_not_learned():
    one = {"role": "assistant", "content": "a"}
    assert read({**one, "weight": 0}) == ({**one, "learned": False},)
    assert read({**one, "weight": 1}) == (one,)
    assert read({**one, "loss_mask": 0}) == ({**one, "learned": False},)
    assert read({**one, "train_on_turn": False}) == ({**one, "learned": False},)
    assert read({**one, "learned": False}) == ({**one, "learned": False},)
    assert read({**one, "learned": True}) == (one,)
    assert read({**one, "weight": "0"}) == ({**one, "learned": False},)
    assert read({**one, "weight": "1.0"}) == (one,)
    with pytest.raises(DataError, match="a weight of 0 or 1"):
        read({**one, "weight": 0.5})
    with pytest.raises(DataError, match="a learned of 0 or 1"):
        read({**one, "learned": "no"})


def test_thoughts_have_one_name():
    item = {"role": "assistant", "content": "a", "thinking": "t"}
    assert read(item)[0]["reasoning_content"] == "t"


def test_a_message_without_content_is_refused():
    with pytest.raises(DataError, match=r"expected {role, content}"):
        read({"role": "user", "msg": "a"})


DEEP = "[" * 200_000


def test_text_that_is_nested_too_deeply_is_no_conversation_and_no_tools():
    assert decoded(DEEP) == DEEP
    with pytest.raises(DataError, match=r"t\.csv:2: column 'messages': got str .* as JSON text"):
        parse_messages(DEEP, "messages", "t.csv:2")
    with pytest.raises(DataError, match=r"t\.csv:2: column 'tools'.* or its JSON text"):
        tools_of({"tools": DEEP}, "t.csv:2")


@pytest.mark.parametrize("value", [datetime.date(2024, 5, 1), b"x", {"deep": [decimal.Decimal(1)]}])
def test_arguments_and_tools_that_json_cannot_hold_are_refused(value):
    inner = {"name": "dew", "arguments": {"at": value}}
    with pytest.raises(DataError, match=r"arguments of dew with values of JSON, or as JSON text"):
        read({"role": "assistant", "tool_calls": [{"function": inner}]})
    schema = {"name": "dew", "parameters": {"default": value}}
    with pytest.raises(DataError, match=r"expected tools with values of JSON"):
        tools_of({"tools": [schema]}, "d.parquet:3")


@pytest.mark.parametrize(
    ("value", "remedy"),
    [
        (b"x", "decode the values of the column to text"),
        (datetime.date(2024, 5, 1), "cast the values of the column to text"),
        (3, "correct this row"),
    ],
)
@pytest.mark.parametrize(
    ("form", "row"),
    [
        ("text", lambda value: {"text": value}),
        ("prompt_completion", lambda value: {"prompt": "a", "completion": value}),
        ("messages", lambda value: {"messages": [{"role": "user", "content": value}]}),
        ("messages", lambda value: {"instruction": "a", "output": value}),
    ],
)
def test_values_of_a_column_of_another_type_are_to_be_cast(form, row, value, remedy):
    with pytest.raises(DataError, match=f"; {remedy}$"):
        to_record(row(value), form, "d:3", "d.parquet:3")
