"""Rename the columns of rows as `data.columns` says, and find several positives of one anchor."""

from __future__ import annotations

import dataclasses
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...config.data_reasons.reason import Reason
from ...config.data_reasons.rows import INVALID_ROWS, MATCH_NEGATIVES
from ...config.schema import Column
from ...config.tasks import FORMATS_OF
from ...errors import DataError
from ..findings import Findings
from ..sources import SourceRecord
from ..sources.rows import is_message
from .formats import ANCHORS, NEGATIVES, POSITIVES, detect_format

_ABSENT = object()
_FIELDS = {
    "sft": {
        **dict.fromkeys(("conversations", "conversation"), "messages"),
        **dict.fromkeys(("query", "question", "problem"), "instruction"),
        **dict.fromkeys(("response", "answer", "solution", "reply"), "output"),
    },
    "contrastive": {
        **dict.fromkeys(ANCHORS, "anchor"),
        **dict.fromkeys(POSITIVES, "positive"),
    },
}
"""The field of `data.columns` for other usual names of columns, by task."""
_PROPOSED = frozenset(
    {
        *("messages", "prompt", "completion", "text", "chosen", "rejected", "anchor", "positive"),
        *("label", "instruction", "input", "output"),
    }
)
"""Fields of `data.columns` that a refusal proposes."""
_COLUMN = re.compile(r"\{([^{}]+)\}")


class MissingColumn(DataError):
    """A row lacks a column that `data.columns` names."""


@dataclass(frozen=True)
class PreparedRow:
    """A row whose columns have the names that the formats use."""

    values: dict[str, Any]
    place: str
    matches: bool | None = True
    """Whether the texts of a pair match; None if the label that should say so is missing."""
    replaced: tuple[str, ...] = ()
    """Columns of the row whose names `data.columns` gives to others, so that they are not read."""
    nulls: tuple[str, ...] = ()
    """Columns of the row whose value is null."""
    stored: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """The columns as stored, without those that `data.columns` leaves unused."""


@dataclass(frozen=True)
class LeftOut:
    """A row that makes no record."""

    id: str
    place: str
    reason: Reason
    detail: str = ""

    def note(self, findings: Findings) -> None:
        """Count the row among the records, and its reason."""
        findings.counted("records", 1)
        # The remedy of the reason says what to do.
        findings.note(self.reason, self.place, self.detail.removesuffix("; correct this row"))


def left_out(
    row: SourceRecord | PreparedRow, reason: Reason, error: DataError, identity: str = ""
) -> LeftOut:
    """Return a row that makes no record because of an error, whose text becomes the detail."""
    detail = str(error).removeprefix(f"{row.place}: ")
    return LeftOut(identity or row.place, row.place, reason, detail)


def require_few_invalid(left: Sequence[LeftOut], rows: int) -> None:
    """Raise if most rows have a value that cannot be read, so that the file is not understood.

    Args:
        left: The rows that make no record.
        rows: Number of all rows.

    Raises:
        DataError: The first such row, what is wrong with it, and how many there are.
    """
    invalid = [one for one in left if one.reason is INVALID_ROWS]
    if 2 * len(invalid) > rows:
        first = f"{invalid[0].place}: {invalid[0].detail}"
        more = f"; {len(invalid):,} of {rows:,} rows cannot be read"
        raise DataError(first + (more if len(invalid) > 1 else ""))


def mapped(row: SourceRecord, columns: Mapping[str, Column]) -> PreparedRow:
    """Return a row with columns renamed, combined or left out as `data.columns` says.

    Several columns are combined by a text such as `"{a} {b}"`, null leaves a column out, and a name
    such as `answers.text.0` stands for a value inside a column. Of a list of them the first one is
    used whose columns are all filled, or the last one if there is none.

    Raises:
        MissingColumn: The row lacks a column.
    """
    used: set[str] = set()
    found: dict[str, Any] = {}
    for field, column in columns.items():
        if column is None:
            used.add(field)
            continue
        if isinstance(column, list):
            used.update(name for one in column for name in _names(row, one) if name in row.values)
            column = next((one for one in column if _filled(row, one)), column[-1])
        names = _names(row, column)
        inner = {name: _inside(row.values, name) for name in names}
        for name, value in inner.items():
            if value is _ABSENT:
                raise MissingColumn(
                    f"{row.place}: data.columns maps {field} to {column!r}, but the row has no "
                    f"column '{name}'; found {', '.join(row.values) or 'none'}; correct "
                    "data.columns"
                )
        used.update(name if name in row.values else name.split(".")[0] for name in names)
        if column in inner:
            found[field] = inner[column]
        else:
            found[field] = _COLUMN.sub(_writer(inner), column)
    kept = {name: value for name, value in row.values.items() if name not in used}
    replaced = tuple(name for name in kept if name in found)
    unused = {name for name, column in columns.items() if column is None}
    stored = {name: value for name, value in row.values.items() if name not in unused}
    return PreparedRow(kept | found, row.place, replaced=replaced, stored=stored)


def _names(row: SourceRecord, column: str) -> list[str]:
    """Return the columns that a name or a text with columns stands for."""
    return [column] if column in row.values else _COLUMN.findall(column) or [column]


def _filled(row: SourceRecord, column: str) -> bool:
    """Whether the row has a value other than null and blank text for each column of a text."""
    found = [_inside(row.values, name) for name in _names(row, column)]
    return not any(
        value is _ABSENT or value is None or (isinstance(value, str) and not value.strip())
        for value in found
    )


def _inside(values: Mapping[str, Any], name: str) -> Any:
    """Return the value of a column, or of a path such as `answers.text.0` inside a column.

    `_ABSENT` is returned if the row has neither.
    """
    if name in values:
        return values[name]
    found: Any = values
    for key in name.split("."):
        if isinstance(found, Mapping):
            found = found.get(key, _ABSENT)
        elif isinstance(found, list) and key.isdecimal() and int(key) < len(found):
            found = found[int(key)]
        else:
            return _ABSENT
    return found


def paths_inside(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield the paths of the texts and conversations inside the columns of a row.

    Of a list only the first value is looked at.
    """
    for name, value in values.items():
        yield from _paths(name, value)


def _paths(path: str, value: Any) -> Iterator[str]:
    inner: Mapping[str, Any] = {}
    if isinstance(value, Mapping):
        inner = value
    elif isinstance(value, list) and value:
        inner = {"0": value[0]}
    for key, part in inner.items():
        if isinstance(part, str) or _is_conversation(part):
            yield f"{path}.{key}"
        else:
            yield from _paths(f"{path}.{key}", part)


def _is_conversation(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(is_message, value))


def _writer(values: Mapping[str, Any]) -> Callable[[re.Match[str]], str]:
    return lambda match: _written(values[match[1]])


def _written(value: Any) -> str:
    return "" if value is None else str(value)


def with_every_positive(rows: Iterable[PreparedRow]) -> Iterator[PreparedRow]:
    """Yield the rows; of a row with several positives, yield one row for each positive.

    Such rows get a common label if they have none, so that they are not negatives of each other.
    """
    for row in rows:
        name, found = several_positives(row)
        if len(found) < 2:
            yield row
            continue
        label = row.values.get("label")
        for text in found:
            own = {name: [text], "label": row.place if label is None else label}
            yield replace(row, values=row.values | own)


def several_positives(row: PreparedRow) -> tuple[str, list[Any]]:
    """Return (column of the positive, its texts that are not empty).

    The name is empty without such a column, and there are no texts if it holds no list.
    """
    name = next((name for name in ("positive", "pos") if name in row.values), "")
    texts = row.values.get(name)
    return name, [text for text in texts if text] if isinstance(texts, list) else []


def proposed_columns(columns: Collection[str], task: str) -> dict[str, str]:
    """Return the `data.columns` that read columns whose names differ in case or spaces only.

    Empty unless these columns then have a format of the task.
    """
    fields = _FIELDS.get(task, {})
    found: dict[str, str] = {}
    for column in columns:
        name = "_".join(column.lower().split())
        found.setdefault(fields.get(name, name), column)
    known = {field: column for field, column in found.items() if field in _PROPOSED}
    return known if detect_format(known, task) in FORMATS_OF[task] else {}


def with_mismatches_as_negatives(
    rows: Sequence[PreparedRow | LeftOut], findings: Findings
) -> Iterator[PreparedRow | LeftOut]:
    """Yield the rows; the texts that do not match an anchor become negatives of those that do.

    Rows whose texts became negatives are counted in `findings` instead of being yielded.
    """
    matching: set[Any] = set()
    negatives: dict[Any, list[Any]] = defaultdict(list)
    for row in rows:
        if isinstance(row, PreparedRow) and row.matches is not None:
            anchor, text = _texts(row)
            matching.update([anchor] if row.matches else [])
            negatives[anchor] += [] if row.matches else [text]
    for row in rows:
        if isinstance(row, LeftOut) or row.matches is None:
            yield row
        elif row.matches:
            yield _with_negatives(row, negatives[_texts(row)[0]])
        elif _texts(row)[0] in matching:
            findings.counted("records", 1)
            findings.note(MATCH_NEGATIVES, row.place)
        else:
            yield row


def _texts(row: PreparedRow) -> tuple[str, str]:
    anchor, positive = (
        str(next((row.values[name] for name in names if name in row.values), ""))
        for names in (ANCHORS, POSITIVES)
    )
    return anchor, positive


def _with_negatives(row: PreparedRow, texts: Sequence[str]) -> PreparedRow:
    free = next((name for name in NEGATIVES if name not in row.values), None)
    kept = [text for text in dict.fromkeys(texts) if text not in _texts(row)]
    return replace(row, values=row.values | {free: kept}) if free and kept else row
