"""Sentinel characters (marks) around the strings of messages show where a chat template puts them.

Each string of a conversation is enclosed in two private-use characters of Unicode. The conversation
is rendered with and without marks. If both texts are equal after the marks are removed, the
template behaves in the same way with marks, so their places are those of the strings.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from .messages import REASONING, Message, Turns, closes_reasoning

Kind = Literal["content", "reasoning", "call"]
Style = Literal["outer", "inner", "middle"]
"""Where marks stand: around white space and tags at the ends of a content, inside them, or both in
the middle of a string, where a template that looks at the ends of a string does not see them."""
STYLES: tuple[Style, ...] = ("outer", "inner", "middle")
_OPENING, _CLOSING = 0xF0000, 0x100000
MOST_STRINGS = 0xFFFD
"""Strings of a conversation that have marks of their own, at most."""
_RAW = "(?P<raw>[\U000f0000-\U000ffffd\U00100000-\U0010fffd])"
_MARK = re.compile(_RAW)
_ESCAPED = re.compile(
    # As JSON writes it in ASCII, also inside of JSON, and as Python writes it.
    _RAW + r"|\\+u(?P<high>db[89a-f][0-9a-f])\\+u(?P<low>d[c-f][0-9a-f]{2})"
    r"|\\+U(?P<long>00(?:0f|10)[0-9a-f]{4})",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class MarkedString:
    """A string of a message that can be enclosed in marks."""

    message: int
    kind: Kind
    text: str
    """The string without surrounding white space."""


@dataclass(frozen=True)
class PlacedString:
    """The position of a string of a message in the rendered text."""

    string: int
    """Number of the string in the conversation."""
    message: int
    kind: Kind
    start: int
    end: int


def has_marks(text: str) -> bool:
    """Whether a text has characters that are used as marks."""
    return _pattern(text).search(text) is not None


def _pattern(text: str) -> re.Pattern[str]:
    """Return the pattern that finds marks in a text.

    Marks that the template has written as JSON escapes are rare and slow to find, so they are
    searched for only if the text has any.
    """
    return _ESCAPED if "\\u" in text or "\\U" in text else _MARK


def opening_mark(string: int) -> str:
    """Return the mark before the string with this number."""
    return chr(_OPENING + string)


def unmarked(text: str) -> str:
    """Return a text without marks."""
    return _pattern(text).sub("", text)


def kinds_of(turn: Message) -> set[Kind]:
    """Return the kinds of strings that a message has."""
    return {string.kind for string in Marking([turn]).strings}


class Marking:
    """The strings of a conversation, numbered in order, and the marks around them.

    A shortened conversation has the same numbers for its strings.
    """

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self.strings: list[MarkedString] = []
        self._first: list[int] = []
        for number, turn in enumerate(turns):
            self._first.append(len(self.strings))
            _rewritten(turn, lambda text, kind, number=number: self._add(number, kind, text))  # type: ignore[misc]  # the default binds the number

    def _add(self, message: int, kind: Kind, text: str) -> str:
        if inner := text.strip():
            self.strings.append(MarkedString(message, kind, inner))
        return text

    def of(self, message: int) -> range:
        """Return the numbers of the strings of a message."""
        ends = [*self._first[1:], len(self.strings)]
        return range(self._first[message], ends[message])

    def marked(
        self,
        chosen: Sequence[int] | None = None,
        *,
        style: Style = "inner",
        stop: int | None = None,
    ) -> list[dict[str, Any]]:
        """Return the messages with marks around the strings of some or all messages.

        Args:
            chosen: Numbers of the messages to mark; None marks all.
            style: Where the marks stand.
            stop: Number of the first message that is left out; None keeps all.
        """
        turns = self._turns[:stop]
        wanted = range(len(turns)) if chosen is None else chosen
        return [
            self._marked(number, style) if number in wanted else dict(turn)
            for number, turn in enumerate(turns)
        ]

    def _marked(self, message: int, style: Style) -> dict[str, Any]:
        numbers = iter(self.of(message))

        def write(text: str, _: Kind) -> str:
            return _mark(text, next(numbers), style) if text.strip() else text

        made = _rewritten(self._turns[message], write)
        if style == "outer" and isinstance(content := made.get("content"), str):
            made["content"] = _widened(content)
        return made

    def changed(self, string: int, change: Callable[[str], str]) -> list[dict[str, Any]]:
        """Return the messages with one string changed, but not the white space around it.

        Args:
            string: Number of the string.
            change: Returns the new string for the present one.
        """
        message = self.strings[string].message
        numbers = iter(self.of(message))

        def write(text: str, _: Kind) -> str:
            if not text.strip() or next(numbers) != string:
                return text
            inner = text.strip()
            return text.replace(inner, change(inner), 1)

        return [
            _rewritten(turn, write) if number == message else dict(turn)
            for number, turn in enumerate(self._turns)
        ]

    def placed(self, text: str, style: Style = "inner") -> list[PlacedString]:
        """Return where the marked strings stand in the text without marks, in order.

        Left out are strings of which a mark is missing and, with style `middle`, those of which
        the template changed the text.
        """
        found: list[PlacedString] = []
        opened: dict[int, int] = {}
        bare = unmarked(text) if style == "middle" else ""
        for closes, number, place in _marks(text):
            if not closes:
                opened[number] = place
            elif number in opened and number < len(self.strings):
                span = (opened.pop(number), place)
                if style == "middle":
                    span = _around(bare, place, self.strings[number].text) or (-1, -1)
                if span[0] >= 0:
                    string = self.strings[number]
                    found.append(PlacedString(number, string.message, string.kind, *span))
        return sorted(found, key=lambda one: (one.start, one.end))


def before_first(text: str) -> str:
    """Return the text before the first mark; empty without a mark."""
    found = _pattern(text).search(text)
    return text[: found.start()] if found else ""


def _marks(text: str) -> Iterator[tuple[bool, int, int]]:
    """Yield (whether the mark closes, number of its string, position in the text without marks)."""
    removed = 0
    for match in _pattern(text).finditer(text):
        code = _code(match)
        closes = code >= _CLOSING
        yield closes, code - (_CLOSING if closes else _OPENING), match.start() - removed
        removed += len(match.group())


def _code(match: re.Match[str]) -> int:
    if match.lastgroup == "raw":
        return ord(match.group())
    if match.lastgroup == "long":
        return int(match["long"], 16)
    return 0x10000 + ((int(match["high"], 16) - 0xD800) << 10) + int(match["low"], 16) - 0xDC00


def _mark(text: str, number: int, style: Style) -> str:
    inner = text.strip()
    start = text.index(inner)
    before, after = text[:start], text[start + len(inner) :]
    opens, closes = opening_mark(number), chr(_CLOSING + number)
    if style == "middle":
        half = len(inner) // 2
        return f"{before}{inner[:half]}{opens}{closes}{inner[half:]}{after}"
    return f"{before}{opens}{inner}{closes}{after}"


def _around(text: str, place: int, string: str) -> tuple[int, int] | None:
    """Return (start, end) of a string with its middle at `place`; None if the text differs."""
    start = place - len(string) // 2
    end = start + len(string)
    return (start, end) if start >= 0 and text[start:end] == string else None


def _widened(text: str) -> str:
    """Return a text with the first mark moved to its beginning, and the last one to its end.

    A text without marks is returned unchanged.
    """
    found = list(_MARK.finditer(text))
    if not found:
        return text
    first, last = found[0], found[-1]
    inner = text[: first.start()] + text[first.end() : last.start()] + text[last.end() :]
    return first.group() + inner + last.group()


_Write = Callable[[str, Kind], str]


def _rewritten(turn: Message, write: _Write) -> dict[str, Any]:
    """Return a message with every string replaced by what `write` returns for it."""
    made = dict(turn)
    if isinstance(content := turn.get("content"), str):
        made["content"] = _sides(content, write)
    elif isinstance(content, list):
        made["content"] = [_part(part, write) for part in content]
    if isinstance(reasoning := turn.get("reasoning_content"), str):
        made["reasoning_content"] = write(reasoning, "reasoning")
    if calls := turn.get("tool_calls"):
        made["tool_calls"] = [_call(call, write) for call in calls]
    return made


def _sides(content: str, write: _Write) -> str:
    """Return a content with the texts between and beside reasoning tags replaced by `write`.

    The tags stay.
    """
    sides = REASONING.split(content)
    made = []
    for index, side in enumerate(sides):
        if index % 2:
            made.append(side)
        else:
            inside = index + 1 < len(sides) and closes_reasoning(sides[index + 1])
            made.append(write(side, "reasoning" if inside else "content"))
    return "".join(made)


def _part(part: Any, write: _Write) -> Any:
    if isinstance(part, Mapping) and isinstance(part.get("text"), str):
        return {**part, "text": write(part["text"], "content")}
    return part


def _call(call: Mapping[str, Any], write: _Write) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, Mapping):
        return dict(call)
    made = dict(function)
    if isinstance(name := function.get("name"), str):
        made["name"] = write(name, "call")
    if "arguments" in function:
        made["arguments"] = _leaves(function["arguments"], write)
    return {**call, "function": made}


def _leaves(value: Any, write: _Write) -> Any:
    if isinstance(value, str):
        return write(value, "call")
    if isinstance(value, Mapping):
        return {key: _leaves(part, write) for key, part in value.items()}
    if isinstance(value, list):
        return [_leaves(part, write) for part in value]
    return value
