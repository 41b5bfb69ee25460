"""Rename the columns of rows as `data.columns` says, and find several positives of one anchor."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ...errors import DataError
from ..sources import SourceRecord

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


def mapped(row: SourceRecord, columns: Mapping[str, str | None]) -> PreparedRow:
    """Return a row with its columns renamed as `data.columns` says.

    Raises:
        MissingColumn: The row lacks a column.
    """
    used: set[str] = set()
    found: dict[str, Any] = {}
    for field, column in columns.items():
        if column is None:
            used.add(field)
            continue
        names = [column] if column in row.values else _COLUMN.findall(column) or [column]
        for name in names:
            if name not in row.values:
                raise MissingColumn(
                    f"{row.place}: data.columns maps {field} to {column!r}, but the row has no "
                    f"column '{name}'; found {', '.join(row.values) or 'none'}"
                )
        used.update(names)
        if column in row.values:
            found[field] = row.values[column]
        else:
            found[field] = _COLUMN.sub(lambda match: _written(row.values[match[1]]), column)
    kept = {name: value for name, value in row.values.items() if name not in used}
    replaced = tuple(name for name in kept if name in found)
    return PreparedRow(kept | found, row.place, replaced=replaced)


def _written(value: Any) -> str:
    return "" if value is None else str(value)


def with_every_positive(rows: Iterable[PreparedRow]) -> Iterator[PreparedRow]:
    """Yield a row for each of several positives of an anchor.

    They get one label of their own, so that they are not negatives of each other.
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
    """Return (column of the positive, its texts that are not empty if it holds a list)."""
    name = next((name for name in ("positive", "pos") if name in row.values), "")
    texts = row.values.get(name)
    return name, [text for text in texts if text] if isinstance(texts, list) else []
