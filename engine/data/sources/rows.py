"""A row of a source as stored, and one pass over the rows with its findings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ...config.data_reasons.reason import Reason, Unit
from ...config.data_reasons.rows import BROKEN_ROWS
from ...errors import DataError
from ..findings import Findings


@dataclass(frozen=True)
class SourceRecord:
    """One row as stored."""

    values: dict[str, Any]
    place: str
    """Where it is stored, such as `train.jsonl:7`."""
    bare: bool = field(default=False, compare=False)
    """Whether it is stored as a text, not as an object with columns."""


@dataclass(frozen=True)
class BrokenRow:
    """A row that cannot be read."""

    place: str
    reason: str
    """What is wrong, such as `not valid JSON at column 7: Expecting value`."""


Row = SourceRecord | BrokenRow
_SAID = frozenset(
    {"content", "value", "text", "parts", "tool_calls", "function_call", "reasoning_content"}
)
"""Keys under which a message has what was said."""


@dataclass
class Pass:
    """One pass over a source: the rows to skip, and the findings.

    A stream is read in several passes. They share `noted`, so that each place is counted only once.
    """

    findings: Findings
    to_skip: int = 0
    """Number of rows that can be read and are still to be skipped."""
    noted: set[str] = field(default_factory=set)
    """What has been counted in this pass or an earlier one."""
    _met: Counter[str] = field(default_factory=Counter)
    """How often each thing was met in this pass: a line can have several broken rows."""

    def first_time(self, what: str) -> bool:
        """Record an observation; return whether no earlier pass has recorded it."""
        self._met[what] += 1
        occurrence = f"{what} {self._met[what]}"
        known = occurrence in self.noted
        self.noted.add(occurrence)
        return not known

    def has_changed(self, what: str, state: str) -> bool:
        """Return whether an earlier pass found something only in other states, and note this one.

        Args:
            what: A file, or a folder or pattern of files.
            state: What changes with it, such as size and time of change.
        """
        known = f"state of {what}"
        changed = known in self.noted and f"{known} {state}" not in self.noted
        self.noted.update((known, f"{known} {state}"))
        return changed

    def note(self, reason: Reason, place: str, detail: str = "", count: int = 1) -> None:
        """Add `count` records, files or keys to the finding `reason`.

        A place that an earlier pass over the source has counted is not counted again.
        """
        if count and self.first_time(f"{reason.name} {place} {detail}"):
            self.findings.note(reason, place, detail, count)

    def counted(self, unit: Unit, count: int, place: str) -> None:
        """Add to the number of examined units, unless an earlier pass has counted this place."""
        if self.first_time(f"{unit} of {place}"):
            self.findings.counted(unit, count)

    def good(self, rows: Iterator[Row], source: str) -> Iterator[SourceRecord]:
        """Yield the rows that can be read and are not skipped; count those that cannot be read.

        Skipped rows are subtracted from `to_skip`.

        Raises:
            DataError: No row can be read.
        """
        good, broken = self.to_skip > 0, None
        for row in rows:
            if isinstance(row, BrokenRow):
                broken = broken or row
                self._broken(row)
                continue
            good = True
            if self.to_skip:
                self.to_skip -= 1
            else:
                yield row
        if broken and not good:
            raise DataError(f"{broken.place}: {broken.reason}; no row of {source} can be read")

    def _broken(self, row: BrokenRow) -> None:
        if self.first_time(f"{BROKEN_ROWS.name} {row.place} {row.reason}"):
            self.findings.counted("records", 1)
            self.findings.note(BROKEN_ROWS, row.place, row.reason)


def row_of(value: Any, place: str) -> Row:
    """Return a value as a row: an object, a list of messages, or a text; others are broken rows."""
    if isinstance(value, dict):
        return SourceRecord(value, place)
    if isinstance(value, str):
        return SourceRecord({"text": value}, place, bare=True)
    if isinstance(value, list) and value and all(map(is_message, value)):
        return SourceRecord({"messages": value}, place)
    name = "null" if value is None else type(value).__name__
    hint = '; write every row with its columns, as pandas does with orient="records"'
    return BrokenRow(
        place,
        f'got {name}, expected an object such as {{"prompt": …, "completion": …}}'
        + (hint if isinstance(value, list) else ""),
    )


def is_message(value: Any) -> bool:
    """Whether a value is a message: an object with a role and a key for what was said."""
    if not isinstance(value, dict):
        return False
    named = isinstance(value.get("role", value.get("from")), str)
    return named and not _SAID.isdisjoint(value)


TOOLS = frozenset({"tools", "functions", "tool_calls", "function_call"})
"""Columns and keys of tools and calls, in which a null can be an argument."""


def unpadded(record: dict[str, Any]) -> dict[str, Any]:
    """Return a row of a table without the nulls that Arrow adds to structs inside lists.

    Parquet and Arrow give every message of a column the keys of all messages. Tools and calls are
    left unchanged, so that the reader of messages can count the arguments that it leaves out.
    """
    return {key: value if key in TOOLS else _unpadded(value) for key, value in record.items()}


def _unpadded(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_nulls(one) for one in value]
    if isinstance(value, dict):
        return {key: _unpadded(one) for key, one in value.items()}
    return value


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {
            key: one if key in TOOLS else _without_nulls(one)
            for key, one in value.items()
            if one is not None
        }
        return kept | ({"content": None} if value.get("content", "") is None else {})
    return [_without_nulls(one) for one in value] if isinstance(value, list) else value


def one_line(error: Exception) -> str:
    """Return the text of an error on one line, at most 300 characters."""
    return " ".join(str(error).split())[:300]
