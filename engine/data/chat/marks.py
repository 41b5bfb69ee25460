"""Marks around the strings of messages, which show where a chat template puts them.

Each message has two characters of a private plane of Unicode, one that opens and one that closes.
They stand around each of its strings, inside surrounding white space. If the rendered text without
marks equals the text rendered without them, the marks did not change what the template does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from .messages import REASONING, Message, Turns

Kind = Literal["content", "reasoning", "call"]
_FIRST = 0xF0000
_KINDS: tuple[Kind, ...] = ("content", "reasoning", "call")
_PER_MESSAGE = 2 * len(_KINDS)
MOST_MESSAGES = 0xFFFE // _PER_MESSAGE
"""Messages of a conversation that have marks of their own, at most."""
_MARKS = re.compile(f"[{chr(_FIRST)}-{chr(_FIRST + 0xFFFD)}]")


@dataclass(frozen=True)
class Placed:
    """Where a string of a message stands in the rendered text."""

    message: int
    kind: Kind
    start: int
    end: int


def has_marks(text: str) -> bool:
    """Whether a text has characters that are used as marks."""
    return _MARKS.search(text) is not None


def unmarked(text: str) -> str:
    """Return a text without marks."""
    return _MARKS.sub("", text)


def marked(
    turns: Turns, chosen: Sequence[int] | None = None, *, outer: bool = False
) -> list[dict[str, Any]]:
    """Return the messages with marks around the strings of the chosen ones, or of all.

    Args:
        turns: The messages.
        chosen: Numbers of the messages to mark; None marks all.
        outer: Put the outermost marks of a content around white space and tags at its ends.
    """
    wanted = range(len(turns)) if chosen is None else chosen
    return [
        _marked(turn, number, outer=outer) if number in wanted else dict(turn)
        for number, turn in enumerate(turns)
    ]


def placed(text: str) -> list[Placed]:
    """Return where the marked strings stand in the text without marks, in order."""
    found: list[Placed] = []
    opened: dict[int, int] = {}
    for count, match in enumerate(_MARKS.finditer(text)):
        place = match.start() - count
        code, closes = divmod(ord(match.group()) - _FIRST, 2)
        if not closes:
            opened[code] = place
        elif code in opened:
            message, kind = divmod(code, len(_KINDS))
            found.append(Placed(message, _KINDS[kind], opened.pop(code), place))
    return found


def before_first(text: str) -> str:
    """Return the text before the first mark; empty without a mark."""
    found = _MARKS.search(text)
    return text[: found.start()] if found else ""


def kinds_of(turn: Message) -> set[Kind]:
    """Return the kinds of strings that a message has."""
    text = json.dumps(_marked(turn, 0), ensure_ascii=False, default=str)
    found = {ord(match.group()) - _FIRST for match in _MARKS.finditer(text)}
    return {_KINDS[code // 2] for code in found}


def _marked(turn: Message, number: int, *, outer: bool = False) -> dict[str, Any]:
    made = dict(turn)
    if isinstance(content := turn.get("content"), str):
        made["content"] = _mark_sides(content, number, outer=outer)
    elif isinstance(content, list):
        made["content"] = [_mark_part(part, number) for part in content]
    if isinstance(reasoning := turn.get("reasoning_content"), str):
        made["reasoning_content"] = _mark(reasoning, number, "reasoning")
    if calls := turn.get("tool_calls"):
        made["tool_calls"] = [_mark_call(call, number) for call in calls]
    return made


def _mark(text: str, number: int, kind: Kind) -> str:
    inner = text.strip()
    if not inner:
        return text
    start = text.index(inner)
    code = _FIRST + number * _PER_MESSAGE + 2 * _KINDS.index(kind)
    return text[:start] + chr(code) + inner + chr(code + 1) + text[start + len(inner) :]


def _mark_sides(content: str, number: int, *, outer: bool) -> str:
    """Mark the text on each side of the tags of reasoning, the text between them as reasoning."""
    sides = REASONING.split(content)
    closes = [tag.startswith(("</", "[/")) for tag in sides[1::2]]
    made = []
    for index, side in enumerate(sides):
        if index % 2:
            made.append(side)
        else:
            inside = index // 2 < len(closes) and closes[index // 2]
            made.append(_mark(side, number, "reasoning" if inside else "content"))
    return _widened("".join(made)) if outer else "".join(made)


def _widened(text: str) -> str:
    """Move the first mark to the beginning of a text, and the last one to its end."""
    found = list(_MARKS.finditer(text))
    if not found:
        return text
    first, last = found[0], found[-1]
    inner = text[: first.start()] + text[first.end() : last.start()] + text[last.end() :]
    return first.group() + inner + last.group()


def _mark_part(part: Any, number: int) -> Any:
    if isinstance(part, Mapping) and isinstance(part.get("text"), str):
        return {**part, "text": _mark(part["text"], number, "content")}
    return part


def _mark_call(call: Mapping[str, Any], number: int) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, Mapping):
        return dict(call)
    made = dict(function)
    if isinstance(name := function.get("name"), str):
        made["name"] = _mark(name, number, "call")
    made["arguments"] = _mark_leaves(function.get("arguments"), number)
    return {**call, "function": made}


def _mark_leaves(value: Any, number: int) -> Any:
    if isinstance(value, str):
        return _mark(value, number, "call")
    if isinstance(value, Mapping):
        return {key: _mark_leaves(part, number) for key, part in value.items()}
    if isinstance(value, list):
        return [_mark_leaves(part, number) for part in value]
    return value
