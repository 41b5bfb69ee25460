"""Conversations under other names: lists of {from, value}, and an instruction with its answer."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from ...errors import DataError
from .messages import parse_messages

CONVERSATIONS = ("conversations", "conversation", "dialogue", "dialog")
QUESTIONS = ("instruction", "prompt", "query", "question", "problem", "input")
CONTINUED = ("input", "context")
"""Columns that continue an `instruction`, on a line of their own."""
ANSWERS = ("output", "response", "answer", "completion", "solution", "reply")


def has_turns(columns: Collection[str]) -> bool:
    """Whether the columns hold a conversation, or one question with one answer."""
    if sum(name in columns for name in CONVERSATIONS) == 1:
        return True
    return sum(name in columns for name in ANSWERS) == 1 and len(_asked(columns)) > 0


def turns_of(values: Mapping[str, Any], place: str) -> tuple[Mapping[str, Any], ...] | None:
    """Return the messages of a row; None if its columns hold no conversation.

    Raises:
        DataError: A message or a role is not understood.
    """
    if not has_turns(values):
        return None
    column = next((name for name in CONVERSATIONS if name in values), None)
    if column is not None:
        return parse_messages(values[column], column, place)
    asked = [_text(values, name, place) for name in _asked(values)]
    answer = _text(values, next(name for name in ANSWERS if name in values), place)
    return (
        {"role": "user", "content": "\n".join(text for text in asked if text)},
        {"role": "assistant", "content": answer},
    )


def _asked(columns: Collection[str]) -> list[str]:
    """Return the columns of the question; none if several columns could be meant."""
    found = [name for name in QUESTIONS if name in columns]
    if "instruction" in columns:
        more = [name for name in CONTINUED if name in columns]
        rest = [name for name in found if name not in ("instruction", *CONTINUED)]
        return ["instruction", *more] if len(more) < 2 and not rest else []
    return found if len(found) == 1 and "context" not in columns else []


def _text(values: Mapping[str, Any], name: str, place: str) -> str:
    value = values[name]
    if value is None and name in CONTINUED:
        return ""
    if not isinstance(value, str):
        raise _wrong(place, name, value, "text")
    return value


def _wrong(place: str, column: str, value: Any, expected: str) -> DataError:
    got = "null" if value is None else f"{type(value).__name__} {str(value)[:60]!r}"
    return DataError(f"{place}: column '{column}': got {got}, expected {expected}; correct it")
