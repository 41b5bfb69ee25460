"""The records inside a single JSON object: its list, its columns, or its values by name.

An object of columns can have the forms that pandas writes: a list or numbered values per column
(`orient="list"`, `"columns"`), names and rows (`"split"`, `"tight"`), and values by row
(`"index"`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ...config.checks import FIELDS
from ...config.data_reasons.rows import REPEATED_KEYS, UNREAD_KEYS, UNREAD_RECORDS
from ...errors import DataError
from .json_values import SOMEWHERE, Element, JsonObject, checked_row
from .rows import Pass, Row, is_message

SPLITS = frozenset({"train", "validation", "valid", "val", "dev", "eval", "test"})
_SPLIT = re.compile(rf"(^|_)({'|'.join(sorted(SPLITS))})$")
"""The key of a split, or of a part of it, such as `oos_test`."""
_OF_RECORDS = frozenset({"tools", "functions", "documents"})
"""Keys of one record that hold a list of objects other than messages."""
_CONVERSATIONS = frozenset({"conversations", "conversation", "dialogue", "dialog", "messages"})
_NAMES = ("data", "train", "rows", "records", "examples", "instances", "items", "samples")
"""Keys under which an object keeps its list of records, by preference."""
_PANDAS_SPLIT = frozenset({"columns", "data", "index", "index_names", "column_names"})
_OF_FILES = frozenset({"schema", "pandas_version", "version", "name"})
"""Keys beside the records that name the file or describe its columns."""
_TEXTS = frozenset(FIELDS) - {"id", "label", "score", "input", "output", "tools"} | {
    *("query", "question", "answer", "response", "conversations", "conversation", "dialog"),
}
"""Names of columns that hold the text of a record."""
_ABOUT = frozenset(
    {
        *("author", "comment", "count", "created", "date", "description", "homepage", "info"),
        *("license", "meta", "metadata", "name", "note", "notes", "source", "title", "total"),
        *("url", "version", "_comment", "dataset", "lang", "language", "citation", "sources"),
    }
)
"""Keys that say something about a whole file."""
_MANY = 20
"""Number of texts by name from which they are not the columns of one record."""

Form = Callable[[JsonObject, str, Pass], Iterator[Row] | None]
"""Takes an object, the wanted split and the pass; returns the rows if the object has a certain
form, otherwise None."""


def rows_inside(found: JsonObject, split: str, reading: Pass) -> Iterator[Row]:
    """Return the records in the only object of a file, or the object itself as one record.

    An empty object has no records.

    Args:
        found: The object.
        split: The split that is read of an object of splits.
        reading: Receives what is noted.

    Raises:
        DataError: The object holds several lists or no records, or lacks the split.
    """
    if not found.members:
        return iter([])
    _refuse_other_things(found)
    for form in _FORMS:
        if (rows := form(found, split, reading)) is not None:
            if found.repeated:
                reading.note(REPEATED_KEYS, found.place, f"key {found.repeated!r}")
            return rows
    _refuse_texts_by_name(found)
    return iter([found.element.row(reading)])


def _refuse_other_things(found: JsonObject) -> None:
    """Raise if the object is a known file that holds no records.

    Raises:
        DataError: It is a notebook, or the answer of a server that has no such file.
    """
    keys = set(found.members)
    if {"cells", "nbformat"} <= keys:
        raise DataError(
            f"{found.place}: this file is a Jupyter notebook, not data; write its data as JSON "
            "lines"
        )
    if keys <= {"error", "message", "status", "documentation_url", "detail"}:
        raise DataError(
            f"{found.place}: this file is the answer of a server, not data: "
            f"{str(found.value)[:200]}; download the file again"
        )


def _pandas_split(found: JsonObject, split: str, reading: Pass) -> Iterator[Row] | None:
    """Return the rows of an object with names under `columns` and lists of values under `data`.

    None for other objects.
    """
    names, data = found.members.get("columns"), found.members.get("data")
    if not (
        isinstance(names, list) and isinstance(data, list) and set(found.members) <= _PANDAS_SPLIT
    ):
        return None
    columns = [one.value for one in names]
    if not all(isinstance(one.value, list) and len(one.value) == len(columns) for one in data):
        return None
    return (
        checked_row(
            dict(zip(map(str, columns), one.value, strict=True)),
            one.place,
            one.source,
            one.repeated,
            reading,
        )
        for one in data
    )


def _listed(found: JsonObject, split: str, reading: Pass) -> Iterator[Row] | None:
    """Return the records of one list: that of the split, that with a usual name, or the only one.

    None if the object has no list of records, or is one record itself. Keys beside the list are
    noted as not read, except other splits and what describes the records.

    Raises:
        DataError: The split is missing, or several lists could be meant.
    """
    of_splits = split in found.members and all(_SPLIT.search(key) for key in found.members)
    lists = {
        key: member
        for key, member in found.members.items()
        if isinstance(member, list) and (_are_records(key, member, split) or of_splits)
    }
    if not lists or _is_one_record(found, lists):
        return None
    if split not in lists and SPLITS >= set(lists) != {"train"}:
        raise _no_split(found, split)
    key = next((name for name in (split, *_NAMES) if name in lists), None)
    if key is None and len(lists) > 1:
        raise DataError(
            f"{found.place}: the file is an object with {len(lists)} lists of records "
            f"({', '.join(lists)}); write the list to train on to a file of its own"
        )
    key = key or next(iter(lists))
    _note_unread(found, key, reading)
    return (one.row(reading) for one in lists[key])


def _are_records(key: str, elements: list[Element], split: str) -> bool:
    """Whether the elements of a list are records, not the messages or texts of one record."""
    if not elements:
        return False
    values = [one.value for one in elements]
    named = key in (*_NAMES, *SPLITS, split)
    objects = [isinstance(one, dict) for one in values]
    if all(objects) or (named and any(objects)):
        return not any(map(is_message, values))
    if not named:
        return False
    return all(isinstance(one, str) for one in values) or all(
        isinstance(one, list) and one and all(map(is_message, one)) for one in values
    )


def _is_one_record(found: JsonObject, lists: Mapping[str, Any]) -> bool:
    """Whether the object with these lists is itself a record."""
    beside = [key for key in found.members if key not in lists]
    members = [(key, found.members[key]) for key in beside]
    if any(isinstance(one, list) and _is_conversation(key, one) for key, one in members):
        return True
    if any(key in (*_NAMES, *SPLITS) for key in lists):
        texts = [found.members[key] for key in beside if key in _TEXTS]
        return any(isinstance(one, Element) and isinstance(one.value, str) for one in texts)
    return any(key in _OF_RECORDS | _CONVERSATIONS for key in lists) or any(
        key in _TEXTS for key in beside
    )


def _no_split(found: JsonObject, split: str) -> DataError:
    splits = [key for key in found.members if key in SPLITS]
    return DataError(
        f"{found.place}: no split {split}; found: {', '.join(splits)}. Set data.train_split and "
        "data.eval_split"
    )


def _note_unread(found: JsonObject, read: str, reading: Pass) -> None:
    """Note the keys beside the records, except other splits and what describes the records."""
    reading.counted("keys", len(found.members), found.place)
    for key, member in found.members.items():
        if key == read or key in _OF_FILES or (key in SPLITS and read in SPLITS):
            continue
        records = len(member) if isinstance(member, list) and _are_records(key, member, "") else 0
        if records:
            reading.counted("records", records, f"{found.place} {key}")
            reading.note(UNREAD_RECORDS, member[0].place, f"key {key!r}", records)
        else:
            reading.note(UNREAD_KEYS, found.place, f"key {key!r}")


def _splits(found: JsonObject, split: str, reading: Pass) -> Iterator[Row] | None:
    """Return the records of a split whose value is an object; None for other objects.

    An object with the split `train` alone is read for any split.

    Raises:
        DataError: The split is missing.
    """
    if not set(found.members) <= SPLITS or not _all_objects(found):
        return None
    if split not in found.members:
        if set(found.members) != {"train"}:
            raise _no_split(found, split)
        split = "train"
    return rows_inside(_inner(found, split), split, reading)


def _inner(found: JsonObject, key: str) -> JsonObject:
    """Return the object under a key; its values have the place of the whole."""
    member = found.members[key]
    assert isinstance(member, Element)
    place = f"{member.place} {key}"

    def element(value: Any) -> Element:
        return Element(value, place, SOMEWHERE if member.source else "", "")

    members = {
        name: [element(one) for one in value] if isinstance(value, list) else element(value)
        for name, value in member.value.items()
    }
    return JsonObject(members, place, member.source, member.repeated)


def _columns(found: JsonObject, split: str, reading: Pass) -> Iterator[Row] | None:
    """Return the rows of an object that has a list per column; None for other objects.

    Keys beside the lists are noted as not read, except those that describe the file.

    Raises:
        DataError: The lists have different lengths.
    """
    lists = {key: member for key, member in found.members.items() if isinstance(member, list)}
    beside = set(found.members) - set(lists)
    conversations = any(_is_conversation(key, elements) for key, elements in lists.items())
    if not lists or beside - _ABOUT or conversations:
        return None
    lengths = {len(one) for one in lists.values()}
    if len(lengths) > 1:
        if beside:
            return None
        listed = ", ".join(f"{key} ({len(one)})" for key, one in list(lists.items())[:5])
        raise DataError(
            f"{found.place}: the file is an object of lists of different lengths: {listed}; write "
            "a record per line, or lists of equal length as columns"
        )
    reading.counted("keys", len(found.members), found.place)
    for key in sorted(beside - _OF_FILES):
        reading.note(UNREAD_KEYS, found.place, f"key {key!r}")
    return _zipped(lists, found.place, reading)


def _is_conversation(key: str, elements: list[Element]) -> bool:
    """Whether a list is one conversation, not a column of conversations."""
    values = [one.value for one in elements]
    if key in _CONVERSATIONS and all(isinstance(one, dict) for one in values):
        return bool(values)
    return bool(values) and all(map(is_message, values))


def _zipped(lists: Mapping[str, list[Element]], place: str, reading: Pass) -> Iterator[Row]:
    for number, cells in enumerate(zip(*lists.values(), strict=True), start=1):
        yield _row_of_cells(
            dict(zip(lists, cells, strict=True)), f"{place} record {number}", reading
        )


def _row_of_cells(cells: Mapping[str, Element], place: str, reading: Pass) -> Row:
    """Return the cells of a row by column as a row, and count its defects in `reading`."""
    row = {name: cell.value for name, cell in cells.items()}
    source = next((cell.source for cell in cells.values() if cell.source), "")
    repeated = next((cell.repeated for cell in cells.values() if cell.repeated), "")
    return checked_row(row, place, source, repeated, reading)


def _by_key(found: JsonObject, split: str, reading: Pass) -> Iterator[Row] | None:
    """Return the rows of an object of objects: of columns with cells by row, or of records.

    None for other objects.
    """
    if not found.members or not _all_objects(found):
        return None
    outer, inner = list(found.members), _inner_keys(found)
    if inner[0] and all(keys == inner[0] for keys in inner) and _are_columns(outer, inner[0]):
        return _turned(found, reading)
    common = set(inner[0]).intersection(*inner)
    if (len(outer) > 1 or outer[0].isdecimal()) and common:
        return _named(found, reading)
    return None


def _all_objects(found: JsonObject) -> bool:
    values = found.members.values()
    return all(isinstance(one, Element) and isinstance(one.value, dict) for one in values)


def _inner_keys(found: JsonObject) -> list[list[str]]:
    return [list(one.value) for one in found.members.values() if isinstance(one, Element)]


def _are_columns(outer: list[str], inner: list[str]) -> bool:
    """Whether the outer keys are names of columns and the inner ones those of rows."""
    if all(one.isdecimal() for one in outer):
        return False
    if all(one.isdecimal() for one in inner):
        return True
    return not _TEXTS.isdisjoint(outer) and _TEXTS.isdisjoint(inner)


def _turned(found: JsonObject, reading: Pass) -> Iterator[Row]:
    columns = {key: one for key, one in found.members.items() if isinstance(one, Element)}
    for name in next(iter(columns.values())).value:
        cells = {key: one._replace(value=one.value[name]) for key, one in columns.items()}
        yield _row_of_cells(cells, f"{found.place} record {name}", reading)


def _named(found: JsonObject, reading: Pass) -> Iterator[Row]:
    for key, member in found.members.items():
        if isinstance(member, Element):
            row = {"id": key, **member.value}
            yield checked_row(row, member.place, member.source, member.repeated, reading)


def _wrapped(found: JsonObject, split: str, reading: Pass) -> Iterator[Row] | None:
    """Return the records inside the only object among the values, and note what is not read.

    None if there is no object or several, if values beside it are not about the data, or if the
    object holds no records.
    """
    objects = [
        key
        for key, one in found.members.items()
        if isinstance(one, Element) and isinstance(one.value, dict)
    ]
    beside = set(found.members) - set(objects)
    if len(objects) != 1 or not beside <= _ABOUT:
        return None
    inner = _inner(found, objects[0])
    for form in _FORMS:
        if (rows := form(inner, split, reading)) is not None:
            _note_unread(found, objects[0], reading)
            if inner.repeated:
                reading.note(REPEATED_KEYS, inner.place, f"key {inner.repeated!r}")
            return rows
    return None


def _refuse_texts_by_name(found: JsonObject) -> None:
    """Raise if the object maps many names to plain values, so that it is not one record.

    Raises:
        DataError: It does.
    """
    values = found.value.values()
    if len(found.members) > _MANY and all(isinstance(one, str | int | float) for one in values):
        raise DataError(
            f"{found.place}: this JSON object maps {len(found.members):,} names to plain values, "
            "so it has no records; write a list of records instead, such as "
            '[{"prompt": <name>, "completion": <value>}]'
        )


_FORMS: tuple[Form, ...] = (_pandas_split, _listed, _splits, _columns, _by_key, _wrapped)
