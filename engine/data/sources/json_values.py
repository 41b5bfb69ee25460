"""Decode JSON text value by value, with the line of each value and the repeated keys."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from ...config.data_reasons.rows import REPEATED_KEYS
from ...errors import DataError
from .rows import BrokenRow, Pass, Row, row_of

BLANK = " \t\r\n\ufeff\x1e"
"""Characters between values: white space, a byte-order mark inside, a separator of records."""
_BLANK = re.compile(rf"[\s{BLANK}]*")
_BETWEEN = re.compile(rf"[\s{BLANK},;]*")
_COMMA = re.compile(rf"[\s{BLANK}]*(,?)[\s{BLANK}]*")
_NESTED = "nested too deeply to be a record"
_MOST_DIGITS = 4300
_HUGE_NUMBER = re.compile(rf"\d{{{_MOST_DIGITS + 1}}}")
"""A number that Python does not read, because it has more digits than it converts."""
_MOST_LEVELS = 100
"""Lists and objects inside each other, at most; functions that visit them call themselves."""
_VALID = msgspec.json.Decoder(msgspec.Raw)


def end_of_blank(text: str, position: int) -> int:
    """Return the position of the next value, after white space, commas and semicolons."""
    return _end_of(_BETWEEN, text, position)


class JsonDecoder:
    """Decodes JSON values, and records a key that an object has twice with different values."""

    def __init__(self) -> None:
        self._repeated = ""
        self._decoder = json.JSONDecoder(object_pairs_hook=self._object)

    def decode(self, text: str, position: int) -> tuple[Any, int]:
        """Return (the value that begins at a position, the position after it).

        Raises:
            ValueError: The text is not valid JSON there.
            RecursionError: The value is nested too deeply.
        """
        return self._decoder.raw_decode(text, position)

    def repeated(self) -> str:
        """Return the first repeated key since the last call; an empty text if there was none."""
        found, self._repeated = self._repeated, ""
        return found

    def _object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs) and not self._repeated:
            lost = (key for key, value in pairs if value != found[key])
            self._repeated = next(lost, "")
        return found


def checked_row(value: Any, place: str, source: str, repeated: str, reading: Pass) -> Row:
    """Return a decoded value as a row, and count a repeated key in `reading`.

    A value that is not a row, or has half of a surrogate pair in a text, is a `BrokenRow`.

    Args:
        value: The value.
        place: Where it is stored.
        source: The JSON text of the value.
        repeated: A key that occurs twice in an object of the value; empty if there is none.
        reading: Receives the findings.
    """
    if repeated:
        reading.note(REPEATED_KEYS, place, f"key {repeated!r}")
    if "\\ud" in source or "\\uD" in source:
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            found = error.object[error.start : error.end].encode("utf-8", "backslashreplace")
            return BrokenRow(place, f"half of a surrogate pair ({found.decode()}) in a text")
    # The text of a part of a larger value is not known.
    if (source in ("", SOMEWHERE) or _may_be_deep(source)) and _is_deep(value):
        return BrokenRow(place, _NESTED)
    return row_of(value, place)


def _may_be_deep(source: str) -> bool:
    return source.count("[") + source.count("{") > _MOST_LEVELS


def _is_deep(value: Any) -> bool:
    """Whether lists and objects stand inside each other on more levels than a record has."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(_MOST_LEVELS):
        inner = (one.values() if isinstance(one, dict) else one for one in level)
        level = [part for parts in inner for part in parts if isinstance(part, dict | list)]
        if not level:
            return False
    return True


def error_text(error: Exception, text: str = "") -> str:
    """Return the description of a syntax error in a JSON text, with its column in the line."""
    if isinstance(error, RecursionError):
        return _NESTED
    if not isinstance(error, json.JSONDecodeError):
        return f"not valid JSON: {error}"
    as_printed = text[:50].lstrip("[ \r\n").startswith("{'")
    quotes = "; write rows with json.dumps, not as Python prints them" if as_printed else ""
    return f"not valid JSON at column {error.colno}: {error.msg}{quotes}"


def is_plain_object(line: str) -> bool:
    """Whether a line is one valid object without escaped surrogates; its values are not built."""
    if not line.startswith("{") or "\\ud" in line or "\\uD" in line or _may_be_deep(line):
        return False
    if len(line) > _MOST_DIGITS and _HUGE_NUMBER.search(line):
        return False
    try:
        _VALID.decode(line)
    except (ValueError, RecursionError):
        return False
    return True


SOMEWHERE = "\\ud"
"""Stands for the JSON text of a part of a value that has surrogates somewhere. The text of the
whole value would be searched again for every part."""


class Element(NamedTuple):
    """A value inside a JSON text, with its place."""

    value: Any
    place: str
    """The file and the line where it begins."""
    source: str
    """Its JSON text; empty if the text of the file has no surrogates."""
    repeated: str
    """A key that an object in it has twice; empty if there is none."""

    def row(self, reading: Pass) -> Row:
        """Return the value as a row, and count its defects in `reading`."""
        return checked_row(self.value, self.place, self.source, self.repeated, reading)


@dataclass(frozen=True)
class JsonObject:
    """An object that may hold the records of a file."""

    members: dict[str, Element | list[Element]]
    """The values; lists by their elements, so that each has its line."""
    place: str
    source: str
    repeated: str

    @property
    def value(self) -> dict[str, Any]:
        """The object as a plain dict."""
        return {
            key: [one.value for one in member] if isinstance(member, list) else member.value
            for key, member in self.members.items()
        }

    @property
    def element(self) -> Element:
        """The whole object as one element."""
        parts = [
            one
            for member in self.members.values()
            for one in (member if isinstance(member, list) else [member])
        ]
        repeated = next((one.repeated for one in parts if one.repeated), self.repeated)
        return Element(self.value, self.place, self.source, repeated)


class JsonScanner:
    """Parses a JSON text once, value by value.

    Args:
        text: The text of the file.
        place: The file.
    """

    def __init__(self, text: str, place: str) -> None:
        # Raw line ends are only between values, where each form of them means the same.
        self.text = text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text
        self._place = place
        self._surrogates = "\\ud" in text or "\\uD" in text
        self._decoder = JsonDecoder()
        self._line, self._counted = 1, 0
        self.position = 0
        self.skip_between()

    @property
    def ended(self) -> bool:
        """Whether only white space is left."""
        return self.position >= len(self.text)

    @property
    def next_character(self) -> str:
        """The next character; an empty text at the end."""
        return self.text[self.position : self.position + 1]

    @property
    def place(self) -> str:
        """The file and line of the current position."""
        self._line += self.text.count("\n", self._counted, self.position)
        self._counted = self.position
        return f"{self._place}:{self._line}"

    def skip_between(self) -> None:
        """Skip white space, commas and semicolons up to the next value."""
        self.position = end_of_blank(self.text, self.position)

    def element(self) -> Element:
        """Return the value at the position, and advance past it.

        Raises:
            DataError: The text is not valid JSON there.
        """
        place, start = self.place, self.position
        try:
            value, self.position = self._decoder.decode(self.text, start)
        except (ValueError, RecursionError) as error:
            raise self._error(error) from None
        source = self.text[start : self.position] if self._surrogates else ""
        return Element(value, place, source, self._decoder.repeated())

    def elements(self) -> Iterator[Element]:
        """Yield the elements of the list that begins at the position, and advance past it.

        Raises:
            DataError: The text is not valid JSON there.
        """
        self._move(1)
        while self.next_character != "]":
            yield self.element()
            if not self._pass_comma() and self.next_character != "]":
                raise self._unexpected("',' or ']'")
        self._move(1)

    def object(self) -> JsonObject:
        """Return the object that begins at the position, and advance past it.

        Raises:
            DataError: The text is not valid JSON there.
        """
        place, start, repeated = self.place, self.position, ""
        members: dict[str, Element | list[Element]] = {}
        for key, member in self._members():
            if key in members and members[key] != member:
                repeated = repeated or key
            members[key] = member
        source = self.text[start : self.position] if self._surrogates else ""
        return JsonObject(members, place, source, repeated)

    def _members(self) -> Iterator[tuple[str, Element | list[Element]]]:
        self._move(1)
        while self.next_character != "}":
            key = self.element().value if self.next_character == '"' else None
            self._move(0)
            if key is None or self.next_character != ":":
                raise self._unexpected("a key and ':'")
            self._move(1)
            yield key, self._list() if self.next_character == "[" else self.element()
            if not self._pass_comma() and self.next_character != "}":
                raise self._unexpected("',' or '}'")
        self._move(1)

    def _list(self) -> list[Element]:
        """Return the elements of the list at the position, and advance past it.

        If the first one is not a list or object, all have the line at which the list begins.

        Raises:
            DataError: The text is not valid JSON there.
        """
        start = self.position
        self._move(1)
        first, self.position = self.next_character, start
        if first in "[{":
            return list(self.elements())
        found = self.element()
        source = SOMEWHERE if found.source else ""
        return [
            Element(one, f"{found.place} element {number}", source, found.repeated)
            for number, one in enumerate(found.value, start=1)
        ]

    def _pass_comma(self) -> bool:
        """Skip white space and one comma; return whether there was a comma."""
        match = _COMMA.match(self.text, self.position)
        self.position = match.end() if match else self.position
        return match is not None and match[1] == ","

    def _move(self, characters: int) -> None:
        """Advance by some characters, and past the white space after them."""
        self.position = _end_of(_BLANK, self.text, self.position + characters)

    def _unexpected(self, expected: str) -> DataError:
        return self._error(json.JSONDecodeError(f"Expecting {expected}", self.text, self.position))

    def _error(self, error: Exception) -> DataError:
        step = "correct this line"
        if isinstance(error, json.JSONDecodeError):
            self.position = max(error.pos, self._counted)
            if error.pos >= len(self.text.rstrip()) or error.msg.startswith("Unterminated"):
                step = "the file ends early: write or download it again"
        return DataError(f"{self.place}: {error_text(error, self.text)}; {step}")


def _end_of(pattern: re.Pattern[str], text: str, position: int) -> int:
    match = pattern.match(text, position)
    return match.end() if match else position
