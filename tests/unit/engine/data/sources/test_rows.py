"""Rows of tables, without what their formats add."""

from __future__ import annotations

from fttui.engine.data.sources.rows import unpadded


def test_nulls_that_a_table_adds_go_but_those_of_tools_and_calls_stay() -> None:
    call = {"function": {"name": "f", "arguments": {"to": None}}, "id": None}
    tool = {"function": {"name": "f", "default": None}}
    row = {
        "messages": [
            {"role": "user", "content": "hi", "tool_calls": None, "name": None},
            {"role": "assistant", "content": None, "tool_calls": [call], "name": None},
        ],
        "tools": [tool],
        "score": None,
    }
    assert unpadded(row) == {
        "messages": [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
        ],
        "tools": [tool],
        "score": None,
    }
