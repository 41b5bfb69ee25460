"""Which columns of a source are read, and which are not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...config.data_reasons import IGNORED_COLUMNS, UNUSED_COLUMNS
from ..findings import Findings
from .formats import Format, Record, to_record

MEANINGFUL = frozenset(
    {
        *("tools", "functions", "system", "system_prompt", "history", "label", "labels"),
        *("score", "chosen", "rejected", "reasoning", "reasoning_content", "thinking"),
        *("weight", "context", "negative", "negatives", "neg", "hard_negatives"),
    }
)
"""Columns that change what should be learned; leaving them unused needs the user's consent."""


class WatchedRow(dict[str, Any]):
    """The values of a row, which remember what is read."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self.used: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self.used.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        """Return a value and remember its name."""
        self.used.add(name)
        return super().get(name, default)


class ColumnUse:
    """Converts rows and collects the columns that no conversion reads."""

    def __init__(self) -> None:
        self._used: set[str] = set()
        self._first: dict[str, str] = {}
        """Place of the first row of each column that has a value."""

    def convert(self, values: Mapping[str, Any], form: Format, identity: str, place: str) -> Record:
        """Return a row as a record.

        Raises:
            DataError: The row is invalid.
        """
        row = WatchedRow(values)
        record = to_record(row, form, identity, place)
        self._used |= row.used
        for name, value in values.items():
            if name not in self._first and value not in (None, "", [], {}):
                self._first[name] = place
        return record

    @property
    def unused(self) -> list[str]:
        """The columns with values that no row's record was made from."""
        return [name for name in self._first if name not in self._used]

    def note(self, findings: Findings) -> None:
        """Count the unused columns of the source, and name them."""
        findings.counted("columns", len(self._first))
        for reason in (UNUSED_COLUMNS, IGNORED_COLUMNS):
            matters = reason is IGNORED_COLUMNS
            if names := [name for name in self.unused if (name.lower() in MEANINGFUL) is matters]:
                findings.note(reason, self._first[names[0]], ", ".join(names), len(names))
