"""Conversations under other names: lists of {from, value}, and an instruction with its answer."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from ...errors import DataError
from .labels import remedy_of
from .messages import MessageRules, parse_messages, texts_by_path
from .tool_calls import parse_calls

Turns = tuple[Mapping[str, Any], ...]

CONVERSATIONS = ("conversations", "conversation", "dialogue", "dialog")
QUESTIONS = ("instruction", "prompt", "query", "question", "problem", "input")
CONTINUED = ("input", "context")
"""Columns that continue an `instruction`, on a line of their own."""
REASONING = "reasoning"
"""The column of the reasoning before an answer, if `data.columns` names it."""
CALL_ANSWERS = "answers"
"""The column of answers that are tool calls, beside a column of tools."""
ANSWERS = ("output", "response", "answer", "completion", "solution", "reply", CALL_ANSWERS)


def conversation_column(columns: Collection[str]) -> str | None:
    """Return the name of the column that holds a conversation; None unless there is exactly one."""
    found = [name for name in CONVERSATIONS if name in columns]
    return found[0] if len(found) == 1 else None


def has_turns(columns: Collection[str]) -> bool:
    """Whether the columns hold a conversation, or one question with one answer."""
    if conversation_column(columns) is not None:
        return True
    return len(answer_columns(columns)) == 1 and len(asked_columns(columns)) > 0


def turns_of(
    values: Mapping[str, Any], place: str, rules: MessageRules | None = None
) -> Turns | None:
    """Return the messages of a row: its conversation, or one question with one answer.

    None if its columns hold neither.

    Raises:
        DataError: A message or a role is not understood.
    """
    rules = rules or MessageRules()
    if not has_turns(values):
        return None
    column = conversation_column(values)
    if column is not None:
        return parse_messages(values[column], column, place, rules)
    question = question_of(values, asked_columns(values), place, rules)
    return (*question, *_answer(values, answer_columns(values)[0], place, rules))


def with_instance(values: dict[str, Any], place: str) -> dict[str, Any]:
    """Return an instruction with the input and output of its only entry in `instances`.

    Rows without an instruction or a list `instances`, or with an answer beside them, are returned
    unchanged.

    Raises:
        DataError: There are several entries, or none with an output.
    """
    entries = values.get("instances")
    if not ("instruction" in values and isinstance(entries, list)) or answer_columns(values):
        return values
    if len(entries) != 1 or not isinstance(entries[0], Mapping) or not entries[0].get("output"):
        raise DataError(
            f"{place}: column 'instances' has {len(entries)} entries, expected one with an output; "
            "write a row for each, or name the one to learn: data.columns: {input: "
            "instances.0.input, output: instances.0.output}"
        )
    rest = {name: value for name, value in values.items() if name != "instances"}
    return rest | {name: part for name, part in entries[0].items() if part is not None}


def turn_columns(columns: Collection[str]) -> list[str]:
    """Return the columns that `turns_of` joins to a conversation."""
    column = conversation_column(columns)
    return [column] if column is not None else [*asked_columns(columns), *answer_columns(columns)]


def asked_columns(columns: Collection[str]) -> list[str]:
    """Return the columns of the question; none if several columns could be meant."""
    found = [name for name in QUESTIONS if name in columns]
    if "instruction" in columns:
        more = [name for name in CONTINUED if name in columns]
        rest = [name for name in found if name not in ("instruction", *CONTINUED)]
        return ["instruction", *more] if len(more) < 2 and not rest else []
    return found if len(found) == 1 and "context" not in columns else []


def answer_columns(columns: Collection[str]) -> list[str]:
    """Return the columns of an answer; tool calls count only if there is a column of tools."""
    found = [name for name in ANSWERS if name in columns]
    tools = "tools" in columns or "functions" in columns
    return found if tools else [name for name in found if name != CALL_ANSWERS]


def question_of(
    values: Mapping[str, Any], asked: list[str], place: str, rules: MessageRules
) -> Turns:
    """Return the turns of a question, from messages or from texts joined line by line.

    Raises:
        DataError: A column holds neither text nor messages.
    """
    if len(asked) == 1 and isinstance(values[asked[0]], list | tuple):
        return parse_messages(values[asked[0]], asked[0], place, rules)
    texts = [_text(values, name, place) for name in asked]
    return ({"role": "user", "content": "\n".join(text for text in texts if text)},)


def _answer(values: Mapping[str, Any], name: str, place: str, rules: MessageRules) -> Turns:
    """Return the turns of an answer, from a text, tool calls or messages.

    Raises:
        DataError: The column holds none of them.
    """
    value = values[name]
    if name == CALL_ANSWERS:
        wrong = f"{place}: column '{name}': got {str(value)[:60]!r}, expected tool calls"
        calls = parse_calls(value, lambda _, expected: DataError(f"{wrong}: {expected}"))
        return ({"role": "assistant", "tool_calls": calls},)
    if isinstance(value, Mapping):
        value = [value]
    if isinstance(value, list | tuple):
        return parse_messages(value, name, place, rules)
    answer = {"role": "assistant", "content": _text(values, name, place)}
    reasoning = values.get(REASONING) if rules.reasoning else None
    if reasoning:
        answer["reasoning_content"] = _text(values, REASONING, place)
    return (answer,)


def _text(values: Mapping[str, Any], name: str, place: str) -> str:
    value = values[name]
    if value is None and name in CONTINUED:
        return ""
    if isinstance(value, list):
        raise _wrong(place, name, value, texts_by_path(name, "text"))
    if isinstance(value, bool | int | float):
        expected = f'text (or data.columns: {{FIELD: "{{{name}}}"}} to write it as text)'
        raise _wrong(place, name, value, expected)
    if not isinstance(value, str):
        raise _wrong(place, name, value, "text")
    return value


def _wrong(place: str, column: str, value: Any, expected: str) -> DataError:
    got = "null" if value is None else f"{type(value).__name__} {str(value)[:60]!r}"
    return DataError(
        f"{place}: column '{column}': got {got}, expected {expected}; {remedy_of(value)}"
    )
