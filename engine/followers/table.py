"""The metrics of a run as one table: a row for each step of each timeline."""

from __future__ import annotations

import csv
import importlib
import io
from collections.abc import Iterable
from typing import Any

from ..errors import FttuiError
from ..protocol.events import Record
from ..run.records.record_feed import RecordFeed, engine_works
from ..run.run_dir import RunDirectory
from .metrics import numbers, place_of

PLACE = ("timeline", "step", "time")
"""The first columns: number of the timeline, step, and Unix seconds of the row's first record."""
FORMATS = ("csv", "parquet")


class MetricsTable:
    """Rows in the order in which the run trained them, columns in that of their first use."""

    def __init__(self, records: Iterable[Record]) -> None:
        rows: dict[tuple[int, int], dict[str, float]] = {}
        columns: dict[str, None] = dict.fromkeys(PLACE)
        for record in records:
            if not (found := numbers(record.event)):
                continue
            place = timeline, step = place_of(record)
            first = {"timeline": timeline, "step": step, "time": record.time}
            rows.setdefault(place, first).update(found)
            columns.update(dict.fromkeys(found))
        self.rows = list(rows.values())
        self.columns = list(columns)

    def csv(self) -> bytes:
        """Return the table as CSV; what was not measured is empty, NaN and infinity are words."""
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, self.columns, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows)
        return text.getvalue().encode()

    def parquet(self) -> bytes:
        """Return the table as a Parquet file; what was not measured is null.

        Raises:
            FttuiError: pyarrow is not installed.
        """
        try:
            arrow: Any = importlib.import_module("pyarrow")
            parquet: Any = importlib.import_module("pyarrow.parquet")
        except ImportError:
            raise FttuiError(
                "a Parquet file needs the package pyarrow, which is not installed. "
                "Run: pip install pyarrow, or use: --metrics csv"
            ) from None
        names = {name: [row.get(name) for row in self.rows] for name in self.columns}
        whole = {name: arrow.array(names.pop(name), arrow.int64()) for name in PLACE[:2]}
        rest = {name: arrow.array(values, arrow.float64()) for name, values in names.items()}
        buffer = io.BytesIO()
        parquet.write_table(arrow.table({**whole, **rest}), buffer)
        return buffer.getvalue()


def table_of(run: RunDirectory) -> tuple[MetricsTable, list[str]]:
    """Return the metrics in the journal of a run, and what of it could not be read, in words.

    Raises:
        OSError: the journal cannot be read, or is a link.
    """
    feed = RecordFeed(run)
    works = engine_works(run)
    found: list[Record] = []
    while records := feed.read():
        found += [record for record in records if numbers(record.event)]
    if not works:
        found += feed.read_rest()
    return MetricsTable(found), feed.not_read
