"""Add the system message and the history to conversations, and apply `data.roles`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...config.schema import DataConfig
from ...errors import DataError
from .messages import ROLE_KEYS
from .turns import ANSWERS, CONTINUED, CONVERSATIONS, QUESTIONS, has_turns, turns_of

SYSTEMS = ("system", "system_prompt")


def with_context(values: dict[str, Any], data: DataConfig, place: str) -> dict[str, Any]:
    """Return a row whose conversation has its roles, its history and its system message.

    Raises:
        DataError: A column is of the wrong kind, or two system messages differ.
    """
    column = next((name for name in ("messages", *CONVERSATIONS) if name in values), None)
    values = dict(values)
    if column is not None and isinstance(values[column], list):
        values[column] = [_renamed(item, data.roles) for item in values[column]]
    system = next((name for name in SYSTEMS if values.get(name)), None)
    history = values.get("history") or []
    if not (system or history or data.system) or not _is_conversation(values, column):
        return values
    turns = values[column] if column is not None else turns_of(values, place)
    if not isinstance(turns, list | tuple) or not isinstance(history, list):
        return values
    text = values.pop(system) if system is not None else None
    values.pop("history", None)
    first = turns[0] if turns and isinstance(turns[0], Mapping) else {}
    own = first.get("content", first.get("value")) if _role(first) == "system" else None
    if own is not None and text and own != text:
        raise DataError(
            f"{place}: column '{system}' and the first message are two different system messages; "
            f"remove one, or set data.columns: {{{system}: null}}"
        )
    front = [] if own is None else [turns[0]]
    if own is None and (text or data.system):
        front = [{"role": "system", "content": text or data.system}]
    rest = turns if own is None else turns[1:]
    values["messages"] = [*front, *_history(history, place), *rest]
    if column not in (None, "messages"):
        del values[column]
    return values if column is not None else _without_turns(values)


def _is_conversation(values: Mapping[str, Any], column: str | None) -> bool:
    if column is not None:
        return True
    raw = {"prompt", "completion"} <= values.keys() or "text" in values
    return not raw and has_turns(values)


def _without_turns(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values without the columns that became messages."""
    used = {*QUESTIONS, *CONTINUED, *ANSWERS}
    return {name: value for name, value in values.items() if name not in used}


def _history(history: list[Any], place: str) -> list[Any]:
    """Return the turns of a history: messages, or a list of [question, answer]."""
    turns: list[Any] = []
    for item in history:
        if isinstance(item, list | tuple) and len(item) == 2:
            turns.append({"role": "user", "content": item[0]})
            turns.append({"role": "assistant", "content": item[1]})
        elif isinstance(item, Mapping):
            turns.append(item)
        else:
            raise DataError(
                f"{place}: column 'history': got {str(item)[:60]!r}, expected [question, answer] "
                "or a message; correct this row, or set data.columns: {history: null}"
            )
    return turns


def _role(item: Mapping[str, Any]) -> Any:
    return next((item[key] for key in ROLE_KEYS if isinstance(item.get(key), str)), None)


def _renamed(item: Any, roles: Mapping[str, str]) -> Any:
    if not isinstance(item, Mapping) or _role(item) not in roles:
        return item
    key = next(key for key in ROLE_KEYS if isinstance(item.get(key), str))
    return {**{k: v for k, v in item.items() if k != key}, "role": roles[item[key]]}
