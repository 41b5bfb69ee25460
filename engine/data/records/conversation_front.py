"""Put the system message and the history of a row before the turns of its conversation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...config.data_reasons.rows import PROMPT_IGNORED, SYSTEM_UNUSED
from ...errors import DataError
from .messages import CONTENT_KEYS, MessageRules, role_of
from .turns import CONVERSATIONS, REASONING, conversation_column, has_turns, turn_columns, turns_of

SYSTEMS = ("system", "system_prompt", "system_message")
Values = dict[str, Any]


class ConversationFront:
    """Puts system messages and histories before the conversations of one source.

    Args:
        system: System message of conversations that have none (`data.system`).
        rules: The roles of messages.
    """

    def __init__(self, system: str | None, rules: MessageRules) -> None:
        self._system = system
        self._rules = rules

    def of_conversation(self, values: Values, place: str) -> Values:
        """Return a row of task sft with the system message and history put before its turns.

        A row without either, or without a conversation, is returned as it is; a `data.system` that
        is not used then is counted as `SYSTEM_UNUSED`.

        Raises:
            DataError: A column is of the wrong kind, or two system messages differ.
        """
        columns = _turn_columns(values)
        if not columns and _is_exchange(values):
            return self._before_prompt(values, ["prompt"], place)
        if not columns:
            return self._without_conversation(values, place)
        if not self._wanted(values):
            return values
        turns = values[columns[0]]
        if columns[0] not in ("messages", *CONVERSATIONS):
            turns = turns_of(values, place, self._rules)
        front, rest, used = self._front(values, turns, place)
        if self._rules.reasoning:
            used.add(REASONING)
        left = {k: v for k, v in values.items() if k not in (*columns, *used)}
        return {**left, "messages": [*front, *rest]}

    def of_preference(self, values: Values, place: str) -> Values:
        """Return a row of task dpo or kto with system message and history put before its prompt.

        A row without a list of messages is returned as it is; a `data.system` that is not used then
        is counted as `SYSTEM_UNUSED`. Of two conversations, a text in `prompt` is left out.

        Raises:
            DataError: A column is of the wrong kind, or two system messages differ.
        """
        sides = [name for name in ("chosen", "rejected") if isinstance(values.get(name), list)]
        if isinstance(values.get("prompt"), list):
            return self._before_prompt(values, ["prompt"], place)
        if len(sides) < 2:
            return self._without_conversation(values, place)
        if isinstance(values.get("prompt"), str):
            values = self._with_prompt(values, place)
        columns = ["prompt"] if isinstance(values.get("prompt"), list) else sides
        return self._before_prompt(values, columns, place)

    def _with_prompt(self, values: Values, place: str) -> Values:
        """Return a row of two conversations without the text `prompt`, which they contain.

        If `chosen` has no user turn, the text becomes a prompt of one turn instead. A text that no
        turn contains is counted as `PROMPT_IGNORED`.
        """
        prompt = values["prompt"]
        if not any(role_of(one, self._rules) == "user" for one in values["chosen"]):
            return values | {"prompt": [{"role": "user", "content": prompt}]}
        said = ["".join(str(_content(one)).split()) for one in values["chosen"]]
        if prompt.strip() and not any("".join(prompt.split()) in one for one in said):
            self._rules.findings.note(PROMPT_IGNORED, place)
        return {name: value for name, value in values.items() if name != "prompt"}

    def _before_prompt(self, values: Values, columns: list[str], place: str) -> Values:
        """Return a row with system message and history put before the turns in these columns.

        A row without either is returned as it is.

        Raises:
            DataError: The turns or the history have another form, or two system messages differ.
        """
        if not self._wanted(values):
            return values
        found, taken = dict(values), set()
        for column in columns:
            front, rest, used = self._front(values, values[column], place)
            found[column] = [*front, *rest]
            taken |= used
        return {name: value for name, value in found.items() if name not in taken}

    def _wanted(self, values: Values) -> bool:
        history = values.get("history")
        return bool(_system_column(values) or history or self._system)

    def _without_conversation(self, values: Values, place: str) -> Values:
        if self._system:
            self._rules.findings.note(SYSTEM_UNUSED, place)
        return values

    def _front(
        self, values: Values, turns: Any, place: str
    ) -> tuple[list[Any], list[Any], set[str]]:
        """Return (system message and history, the other turns, names of the columns used).

        Raises:
            DataError: The turns or the history have another form, or two system messages differ.
        """
        column = _system_column(values)
        text = values[column] if column is not None else None
        if not isinstance(turns, list | tuple):
            raise _wrong(place, "messages", turns, "a list of {role, content}")
        own = turns[0] if turns and role_of(turns[0], self._rules) == "system" else None
        if own is not None and text and _content(own) != text:
            raise DataError(
                f"{place}: column '{column}' and the first message are two different system "
                f"messages; remove one, or set data.columns: {{{column}: null}}"
            )
        front = [] if own is None else [own]
        if own is None and (text or self._system):
            front = [{"role": "system", "content": text or self._system}]
        past = _history(values.get("history"), place)
        used = {name for name in (column, "history") if name is not None}
        return [*front, *past], list(turns[0 if own is None else 1 :]), used


def _turn_columns(values: Values) -> list[str]:
    """Return the columns that make up the conversation of a row; none if it has no conversation."""
    if "messages" in values:
        return ["messages"]
    raw = {"prompt", "completion"} <= values.keys() or "text" in values
    named = conversation_column(values) is not None
    return turn_columns(values) if has_turns(values) and (named or not raw) else []


def _is_exchange(values: Values) -> bool:
    """Whether prompt and completion are both lists of messages."""
    return all(isinstance(values.get(name), list) for name in ("prompt", "completion"))


def _system_column(values: Values) -> str | None:
    return next((name for name in SYSTEMS if values.get(name)), None)


def _content(item: Mapping[str, Any]) -> Any:
    return next((item[key] for key in CONTENT_KEYS if key in item), None)


def _history(history: Any, place: str) -> list[Any]:
    """Return the turns of a history, which is a list of messages or of pairs [question, answer].

    Raises:
        DataError: The history has another form.
    """
    if not history:
        return []
    if not isinstance(history, list | tuple):
        raise _wrong(place, "history", history, "a list of [question, answer] or of messages")
    turns: list[Any] = []
    for item in history:
        if isinstance(item, list | tuple) and len(item) == 2:
            turns.append({"role": "user", "content": item[0]})
            turns.append({"role": "assistant", "content": item[1]})
        elif isinstance(item, Mapping):
            turns.append(item)
        else:
            raise _wrong(place, "history", item, "[question, answer] or a message")
    return turns


def _wrong(place: str, column: str, value: Any, expected: str) -> DataError:
    return DataError(
        f"{place}: column '{column}': got {str(value)[:60]!r}, expected {expected}; correct this "
        f"row, or set data.columns: {{{column}: null}}"
    )
