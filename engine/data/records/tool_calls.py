"""Tools and tool calls of all common forms, as chat templates of transformers expect them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Wrong = Callable[[Any, str], Exception]
"""Returns the error for a value that is not what is expected."""


_PARAMETERS = {"input_schema": "parameters", "inputSchema": "parameters"}
"""Names of the parameters of tools in the forms of other interfaces."""


def without_nulls(value: Any) -> Any:
    """Return a value without the keys whose value is null, at any depth."""
    if isinstance(value, Mapping):
        return {key: without_nulls(part) for key, part in value.items() if part is not None}
    if isinstance(value, list | tuple):
        return [without_nulls(part) for part in value]
    return value


def nulls_in(value: Any) -> int:
    """Return the number of keys whose value is null, at any depth."""
    if isinstance(value, Mapping):
        return sum(1 if part is None else nulls_in(part) for part in value.values())
    return sum(map(nulls_in, value)) if isinstance(value, list | tuple) else 0


def _foreign(value: Any) -> Any:
    """Return the first value at any depth that JSON does not have, such as a date or bytes.

    None if there is none.
    """
    if value is None or isinstance(value, str | bool | int | float):
        return None
    if isinstance(value, Mapping):
        value = value.values()
    elif not isinstance(value, list | tuple):
        return value
    found = (_foreign(part) for part in value)
    return next((one for one in found if one is not None), None)


def _require_json(value: Any, what: str, wrong: Wrong) -> None:
    """Refuse a value that a chat template could write only in Python's notation.

    Raises:
        DataError: A part of the value has no form in JSON.
    """
    if (found := _foreign(value)) is not None:
        raise wrong(found, f"{what} with values of JSON, or as JSON text")


def parse_tools(value: Any, wrong: Wrong) -> tuple[Mapping[str, Any], ...]:
    """Return the tools in a list or its JSON text; bare functions are wrapped; null holds none.

    Raises:
        DataError: The value lists no tools.
    """
    expected = 'a list of tools such as {"type": "function", "function": {"name": …}}'
    if isinstance(value, str):
        value = parsed(value, wrong, f"{expected}, or its JSON text")
    if isinstance(value, Mapping):
        value = [value]
    if value is None:
        return ()
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise wrong(value, expected)
    found = []
    for tool in value:
        tool = parsed(tool, wrong, expected) if isinstance(tool, str) else tool
        if not isinstance(tool, Mapping):
            raise wrong(tool, expected)
        _require_json(tool, "tools", wrong)
        if isinstance(tool.get("function"), Mapping):
            found.append({"type": "function", **tool})
        elif isinstance(tool.get("name"), str):
            bare = {_PARAMETERS.get(key, key): part for key, part in tool.items() if key != "type"}
            found.append({"type": "function", "function": bare})
        else:
            raise wrong(tool, expected)
    return tuple(found)


def parse_calls(value: Any, wrong: Wrong) -> list[dict[str, Any]]:
    """Return tool calls, with arguments as a mapping instead of its JSON text.

    Arguments whose JSON text is not a mapping stay as they are.

    Raises:
        DataError: The value holds no tool calls, or the arguments are a text that is not JSON.
    """
    if isinstance(value, str):
        value = parsed(value, wrong, "tool calls as JSON")
    calls = [value] if isinstance(value, Mapping) else value
    if not isinstance(calls, Sequence) or isinstance(calls, str):
        raise wrong(calls, "a list of tool calls")
    return [_call(call, wrong) for call in calls]


def _call(call: Any, wrong: Wrong) -> dict[str, Any]:
    inner = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(inner, Mapping) or not isinstance(inner.get("name"), str):
        raise wrong(call, 'a tool call such as {"name": …, "arguments": {…}}')
    rest = {} if inner is call else {key: part for key, part in call.items() if key != "function"}
    function = dict(inner)
    if "arguments" not in function and "parameters" in function:
        function["arguments"] = function.pop("parameters")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        text = arguments.strip() or "{}"
        found = parsed(text, wrong, f"arguments of {inner['name']} as JSON text")
        function["arguments"] = found if isinstance(found, Mapping) else arguments
    else:
        _require_json(arguments, f"arguments of {inner['name']}", wrong)
    return {"type": "function", **rest, "function": function}


def parsed(text: str, wrong: Wrong, expected: str) -> Any:
    """Return the value of a JSON text; None for a blank text.

    Raises:
        DataError: The text is not JSON, or is nested too deeply.
    """
    try:
        return json.loads(text) if text.strip() else None
    except (ValueError, RecursionError):
        raise wrong(text, expected) from None
