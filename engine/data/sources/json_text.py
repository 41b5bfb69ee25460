"""Rows of JSON text: one value per line, a list, several objects in a row, or one object.

Lines are read lazily. The text of a list or of an object is loaded as a whole and parsed once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import IO, Any

from ...errors import DataError
from .json_objects import rows_inside
from .json_values import (
    BLANK,
    JsonDecoder,
    JsonScanner,
    checked_row,
    end_of_blank,
    error_text,
    is_plain_object,
)
from .rows import BrokenRow, Pass, Row, SourceRecord, is_message

_OF_LISTINGS = frozenset({"download_url", "git_url", "sha"})
"""Keys with which GitHub describes a file of a folder."""
_LINES = 20
"""Lines at the beginning of a file that show whether it has a row per line."""
_PEEKED = 100
"""Rows at the beginning of a file that show whether its rows are objects or texts."""


def json_rows(
    open_text: Callable[[], IO[str]], place: str, split: str, reading: Pass
) -> Iterator[Row]:
    """Yield the rows of a JSON file.

    Args:
        open_text: Opens the file as text.
        place: The file, for the places of rows.
        split: The split that is read if the file is an object of splits.
        reading: The pass, which receives findings.

    Raises:
        DataError: The file as a whole is not valid JSON, or its value holds no records.
    """
    kind = _Kind()
    rows = (
        _lines(open_text, place, reading, kind)
        if _has_lines(open_text)
        else _whole(open_text, place, split, reading)
    )
    return _of_one_kind(rows, kind)


@dataclass
class _Kind:
    """What the first rows of a file show about all of its rows."""

    objects: bool = False
    """Whether every valid object is a row that can be read; False while it is not known."""


def _is_row(line: str) -> bool:
    """Whether a line is a row of its own: a complete object, list or text that is not empty."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict | list | str) and bool(value)


def _has_lines(open_text: Callable[[], IO[str]]) -> bool:
    """Whether a file has one row per line, so that it can be read line by line.

    False for a file of a single line; some lines may be broken.
    """
    with open_text() as text:
        found = (one for line in text if (one := line.strip(BLANK)))
        lines = list(islice(found, _LINES))
        more = next(found, None) is not None
    if len(lines) < 2:
        return False
    rows = [_is_row(line) for line in lines]
    # A value that continues after these lines may also be a broken line near their end.
    goes_on = more and sum(rows) < len(rows) / 2
    return all(rows) or (any(rows) and not _span_lines("\n".join(lines), goes_on=goes_on))


def _span_lines(text: str, *, goes_on: bool) -> bool:
    """Whether the lines are JSON values that may span lines.

    Only the beginning of a file is examined, because the whole file may not fit into memory. With
    `goes_on` the last value may continue behind the text.
    """
    decoder, position = json.JSONDecoder(), 0
    while position < len(text):
        try:
            _, position = decoder.raw_decode(text, position)
        except json.JSONDecodeError as error:
            return goes_on and error.pos >= len(text)
        except (ValueError, RecursionError):
            return False
        position = end_of_blank(text, position)
    return True


def _lines(
    open_text: Callable[[], IO[str]], place: str, reading: Pass, kind: _Kind
) -> Iterator[Row]:
    decoder = JsonDecoder()
    with open_text() as text:
        for number, line in enumerate(text, start=1):
            stripped = line.strip(BLANK)
            if reading.to_skip and kind.objects and is_plain_object(stripped):
                reading.to_skip -= 1
            elif stripped:
                last = not line.endswith(("\n", "\r"))
                yield from _line(decoder, stripped, f"{place}:{number}", reading, last=last)


def _line(
    decoder: JsonDecoder, line: str, place: str, reading: Pass, *, last: bool
) -> Iterator[Row]:
    """Yield the rows of a line: a single row, the rows of a list, or several objects in a row."""
    begin = 0
    while True:
        try:
            value, end = decoder.decode(line, begin)
        except (ValueError, RecursionError) as error:
            yield BrokenRow(place, error_text(error, line) + _cut_off(error, line, last=last))
            return
        rest = line[end:].lstrip(BLANK + ",;")
        if rest and not (isinstance(value, dict) and rest.startswith("{")):
            yield BrokenRow(place, f"not valid JSON at column {end + 1}: text after the value")
            return
        yield from _rows_of_value(value, place, line, decoder.repeated(), reading)
        if not rest:
            return
        begin = len(line) - len(rest)


def _cut_off(error: Exception, line: str, *, last: bool) -> str:
    if not last or not isinstance(error, json.JSONDecodeError):
        return ""
    ends = error.pos >= len(line) - 1 or error.msg.startswith("Unterminated")
    return "; the last line is cut off" if ends else ""


def _rows_of_value(
    value: Any, place: str, line: str, repeated: str, reading: Pass
) -> Iterator[Row]:
    objects = isinstance(value, list) and value and all(isinstance(one, dict) for one in value)
    if objects and not any(map(is_message, value)):
        for number, one in enumerate(value):
            yield checked_row(one, place, line, "" if number else repeated, reading)
    else:
        yield checked_row(value, place, line, repeated, reading)


def _whole(
    open_text: Callable[[], IO[str]], place: str, split: str, reading: Pass
) -> Iterator[Row]:
    with open_text() as text:
        scanner = JsonScanner(text.read(), place)
    if scanner.next_character == "{":
        found = scanner.object()
        scanner.skip_between()
        if scanner.ended:
            yield from rows_inside(found, split, reading)
            return
        yield found.element.row(reading)
    while not scanner.ended:
        if scanner.next_character == "[":
            yield from _list_rows(scanner, reading)
        else:
            yield scanner.element().row(reading)
        scanner.skip_between()


def _list_rows(scanner: JsonScanner, reading: Pass) -> Iterator[Row]:
    """Yield the elements of a list; a list of messages is one conversation.

    Raises:
        DataError: The list is GitHub's description of the files of a folder.
    """
    place = scanner.place
    elements = scanner.elements()
    first = next(elements, None)
    if first is None:
        return
    if isinstance(first.value, dict) and set(first.value) >= _OF_LISTINGS:
        raise DataError(
            f"{place}: this file is the list of files of a folder, not data; download the files"
        )
    if is_message(first.value):
        found = [first, *elements]
        if all(is_message(one.value) for one in found):
            yield SourceRecord({"messages": [one.value for one in found]}, place)
            return
        elements = iter(found[1:])
    for one in chain([first], elements):
        yield one.row(reading)


def _refuse_encoded_twice(rows: list[Row]) -> None:
    """Raise if all rows are texts that hold JSON objects, which would be learned as text.

    Raises:
        DataError: They are.
    """
    texts = [one for one in rows if isinstance(one, SourceRecord)]
    if texts and all(one.bare and is_plain_object(one.values["text"].strip()) for one in texts):
        raise DataError(
            f"{texts[0].place}: every row is a text that holds a JSON object, as if the rows were "
            "encoded twice; write each row with json.dumps once, or as an object with the column "
            "text if the model should learn the JSON itself"
        )


def _of_one_kind(rows: Iterator[Row], kind: _Kind) -> Iterator[Row]:
    """Yield the rows; a text among objects or an object among texts becomes a broken row.

    Texts are rows as well if the objects have a column `text`. What the first rows show is noted in
    `kind` before the others are read.

    Raises:
        DataError: The rows are texts that hold JSON objects.
    """
    first = list(islice(rows, _PEEKED))
    _refuse_encoded_twice(first)
    objects = [one for one in first if isinstance(one, SourceRecord) and not one.bare]
    kind.objects = bool(objects)
    if any("text" in one.values for one in objects):
        yield from chain(first, rows)
        return
    for row in chain(first, rows):
        if (
            isinstance(row, SourceRecord)
            and row.bare == bool(objects)
            and "text" not in (() if row.bare else row.values)
        ):
            got, others = ("a text", "objects") if row.bare else ("an object", "texts")
            yield BrokenRow(row.place, f"got {got}, but the other rows are {others}")
        else:
            yield row
