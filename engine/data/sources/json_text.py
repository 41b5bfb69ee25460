"""Rows of JSON text in all its forms: lines, a list, objects one after the other, one object.

Lines are read lazily. A list and an object are loaded whole.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import IO, Any

from ...errors import DataError
from .rows import BrokenRow, Row, is_message, row_of

_DECODER = json.JSONDecoder()
_SPLITS = frozenset({"train", "validation", "valid", "val", "dev", "eval", "test"})
_OF_RECORDS = frozenset({"tools", "functions"})
"""Keys of one record that hold a list of objects other than messages."""
_NAMES = ("data", "train", "rows", "records", "examples", "instances", "items", "samples")
"""Keys under which an object keeps its list of records, by preference."""


def json_rows(open_text: Callable[[], IO[str]], place: str, split: str) -> Iterator[Row]:
    """Yield the rows of a JSON file.

    Args:
        open_text: Opens the file as text.
        place: The file, for the places of rows.
        split: The split that is read if the file is an object of splits.

    Raises:
        DataError: The file as a whole is not valid JSON, or holds no rows.
    """
    with open_text() as text:
        first = next((line for line in text if line.strip()), "")
        more = any(line.strip() for line in text)
    whole = _complete(first)
    if more and whole is not _BROKEN and not isinstance(whole, str | int | float | None):
        return _lines(open_text, place)
    if more and whole is _BROKEN and _second_is_complete(open_text):
        return _lines(open_text, place)
    with open_text() as text:
        return _whole(text.read(), place, split)


class _Broken:
    """The value of text that is not complete JSON."""


_BROKEN = _Broken()


def _complete(line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return _BROKEN


def _second_is_complete(open_text: Callable[[], IO[str]]) -> bool:
    """Whether lines after a broken first one are objects, so that only the first is broken."""
    with open_text() as text:
        lines = (line for line in text if line.strip())
        next(lines, None)
        second = next(lines, "")
    return isinstance(_complete(second), dict)


def _lines(open_text: Callable[[], IO[str]], place: str) -> Iterator[Row]:
    with open_text() as text:
        for number, line in enumerate(text, start=1):
            if line.strip():
                yield from _line(line.strip(), f"{place}:{number}", last=not line.endswith("\n"))


def _line(line: str, place: str, *, last: bool) -> Iterator[Row]:
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        ends = (last and error.pos >= len(line) - 1) or error.msg.startswith("Unterminated")
        hint = "; the last line is cut off" if last and ends else ""
        yield BrokenRow(place, f"not valid JSON at column {error.colno}: {error.msg}{hint}")
        return
    except RecursionError:
        yield BrokenRow(place, "nested too deeply to be a record")
        return
    if isinstance(value, list) and not any(map(is_message, value)) and _all_objects(value):
        yield from (_checked(one, place, line) for one in value)
        return
    yield _checked(value, place, line)


def _checked(value: Any, place: str, source: str) -> Row:
    """Return a row, or a broken one if a text in it has half of a surrogate pair."""
    if "\\ud" in source or "\\uD" in source:
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            found = error.object[error.start : error.end].encode("utf-8", "backslashreplace")
            return BrokenRow(place, f"half of a surrogate pair ({found.decode()}) in a text")
    return row_of(value, place)


def _all_objects(values: list[Any]) -> bool:
    return bool(values) and all(isinstance(one, dict) for one in values)


def _whole(text: str, place: str, split: str) -> Iterator[Row]:
    values = list(_values(text, place))
    if len(values) != 1:
        return (_checked(value, where, source) for value, where, source in values)
    value, where, _ = values[0]
    if isinstance(value, list):
        return _listed(text, place)
    if isinstance(value, dict):
        # Surrogates are looked for once: each record would search the text of the whole file.
        surrogates = "\\ud" if "\\ud" in text or "\\uD" in text else ""
        return (_checked(one, at, surrogates) for one, at in _inside(value, place, split))
    return iter([row_of(value, where)])


def _values(text: str, place: str) -> Iterator[tuple[Any, str, str]]:
    """Yield the JSON values of a text, one after the other, with their places and their text."""
    starts = _line_starts(text)
    position = _skip(text, 0, "")
    while position < len(text):
        value, end = _decode(text, position, place, starts)
        yield value, f"{place}:{bisect_right(starts, position)}", text[position:end]
        position = _skip(text, end, ",;")


def _listed(text: str, place: str) -> Iterator[Row]:
    """Yield the elements of a list, each with the line where it begins."""
    starts = _line_starts(text)
    position = _skip(text, text.index("[") + 1, "")
    while position < len(text) and text[position] != "]":
        value, end = _decode(text, position, place, starts)
        yield _checked(value, f"{place}:{bisect_right(starts, position)}", text[position:end])
        position = _skip(text, end, ",")


def _decode(text: str, position: int, place: str, starts: list[int]) -> tuple[Any, int]:
    try:
        return _DECODER.raw_decode(text, position)
    except json.JSONDecodeError as error:
        line = bisect_right(starts, error.pos)
        column = error.pos - starts[line - 1] + 1
        raise DataError(
            f"{place}:{line}: not valid JSON at column {column}: {error.msg}; correct this line"
        ) from None
    except RecursionError:
        raise DataError(f"{place}: nested too deeply to be a record") from None


def _line_starts(text: str) -> list[int]:
    starts, position = [0], text.find("\n")
    while position >= 0:
        starts.append(position + 1)
        position = text.find("\n", position + 1)
    return starts


def _skip(text: str, position: int, also: str) -> int:
    """Return the next position that is no white space and none of the characters in `also`."""
    while position < len(text) and (text[position].isspace() or text[position] in also):
        position += 1
    return position


def _inside(value: dict[str, Any], place: str, split: str) -> Iterator[tuple[Any, str]]:
    """Yield the records in an object: of its list, split or columns, or the object itself."""
    lists = {key: one for key, one in value.items() if isinstance(one, list) and _records(one)}
    if any(key in _OF_RECORDS for key in lists):
        return iter([(value, place)])
    if lists and split not in lists and _SPLITS >= set(lists) != {"train"}:
        raise DataError(
            f"{place}: no split {split}; found: {', '.join(lists)}. Set data.train_split and "
            "data.eval_split"
        )
    if lists:
        key = next((k for k in (split, *_NAMES) if k in lists), None)
        if key is None and len(lists) > 1:
            raise DataError(
                f"{place}: the file is an object with {len(lists)} lists of records "
                f"({', '.join(lists)}); write the list to train on to a file of its own"
            )
        key = key or next(iter(lists))
        return ((one, f"{place} {key}[{n}]") for n, one in enumerate(lists[key]))
    columns = [one for one in value.values() if isinstance(one, list)]
    if len(columns) == len(value) > 1 and len({len(one) for one in columns}) == 1:
        rows = zip(*columns, strict=True)
        return (
            (dict(zip(value, row, strict=True)), f"{place} record {n}")
            for n, row in enumerate(rows, start=1)
        )
    inner = list(value.values())
    if len(inner) > 1 and _all_objects(inner) and len({tuple(sorted(one)) for one in inner}) == 1:
        return (({"id": key, **one}, f"{place} {key}") for key, one in value.items())
    return iter([(value, place)])


def _records(values: list[Any]) -> bool:
    """Whether a list holds records, not the messages of one record."""
    return _all_objects(values) and not any(map(is_message, values))
