"""Rows of tables: CSV and its kin, Parquet, Arrow."""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, Literal

from ...errors import DataError
from .rows import BrokenRow, Row, SourceRecord, one_line, row_of, unpadded

_DELIMITERS = ",\t;|"
_NUMBER = re.compile(r"\s*-?[\d.]+\s*")
LONGEST_NAME = 60
"""Characters of a column name; a longer first row is no header."""


def delimiter_of(open_text: Callable[[], IO[str]], suffix: str) -> str:
    """Return the delimiter of a table: tab by its ending, else the most frequent of the header."""
    if suffix in (".tsv", ".tab"):
        return "\t"
    with open_text() as text:
        header = next((line for line in text if line.strip()), "")
    outside = re.sub(r'"[^"]*"', "", header)
    return max(_DELIMITERS, key=lambda one: (outside.count(one), one == ","))


def csv_rows(open_text: Callable[[], IO[str]], place: str, suffix: str) -> Iterator[Row]:
    """Yield the rows of a table with a header; a row is at the line where it begins.

    Raises:
        DataError: The table has no header.
    """
    csv.field_size_limit(min(sys.maxsize, 2**31 - 1))
    delimiter = delimiter_of(open_text, suffix)
    with open_text() as text:
        quoting: Literal[0, 3] = (
            csv.QUOTE_NONE if _bare_quotes(open_text, delimiter) else csv.QUOTE_MINIMAL
        )
        lines = csv.reader(
            text,
            delimiter=delimiter,
            quoting=quoting,
            skipinitialspace=delimiter == ",",
            strict=True,
        )
        header = next((row for row in lines if any(cell.strip() for cell in row)), [])
        names = _names(header, place)
        begin = lines.line_num + 1
        for row in _unbroken(lines, place):
            where, begin = f"{place}:{begin}", lines.line_num + 1
            if not any(cell.strip() for cell in row):
                continue
            if len(row) != len(names):
                yield BrokenRow(where, f"{len(row)} cells, expected {len(names)} as in the header")
            else:
                yield SourceRecord(dict(zip(names, row, strict=True)), where)


def _unbroken(lines: Any, place: str) -> Iterator[list[str]]:
    """Yield the rows of a table.

    Raises:
        DataError: A quote is not closed, or has text behind it, so that later rows are joined.
    """
    try:
        yield from lines
    except csv.Error as error:
        raise DataError(
            f"{place}:{lines.line_num}: {one_line(error)}; write a quote inside a quoted cell "
            "twice, close every quoted cell, or download the file again if its end is missing"
        ) from None


def _bare_quotes(open_text: Callable[[], IO[str]], delimiter: str) -> bool:
    """Whether a table with tabs has quotes that only are characters, as many such files have.

    A quote that opens a cell and is not closed in it would join the rows that follow.
    """
    if delimiter != "\t":
        return False
    with open_text() as text:
        return any(
            cell.startswith('"') and (len(cell) < 2 or not cell.endswith('"'))
            for line in text
            for cell in line.rstrip("\r\n").split("\t")
        )


def _names(header: list[str], place: str) -> list[str]:
    names = [name.strip() for name in header]
    while names and not names[-1]:
        names.pop()
    odd = [name for name in names if len(name) > LONGEST_NAME or _NUMBER.fullmatch(name)]
    if not names or odd or len(set(names)) < len(names) or len(names) < len(header) - 1:
        raise DataError(
            f"{place}: the first row is no header ({', '.join(names)[:80]!r}); put a row with the "
            "names of the columns in front, such as prompt,completion"
        )
    # A column without a name in front is the index that pandas writes.
    names = [name or f"column {number}" for number, name in enumerate(names, start=1)]
    return names + [f"column {len(names) + 1}"] * (len(header) - len(names))


def parquet_rows(path: Path, start: int = 0) -> Iterator[Row]:
    """Yield the rows of a Parquet file from number `start` on; whole row groups are skipped.

    Raises:
        DataError: The file is no readable Parquet.
    """
    import pyarrow  # deferred, as datasets is: only these sources need it
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(path)
        groups, number = list(range(file.num_row_groups)), 0
        while groups and number + file.metadata.row_group(groups[0]).num_rows <= start:
            number += file.metadata.row_group(groups.pop(0)).num_rows
        for batch in file.iter_batches(row_groups=groups) if groups else ():
            for record in batch.to_pylist():
                number += 1
                if number > start:
                    yield row_of(unpadded(record), f"{path} row {number}")
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(
            f"{path}: not readable as Parquet: {one_line(error)}; write the file again"
        ) from None


def arrow_rows(path: Path) -> Iterator[Row]:
    """Yield the rows of an Arrow file or stream.

    Raises:
        DataError: The file is no readable Arrow.
    """
    import pyarrow
    import pyarrow.feather
    import pyarrow.ipc

    try:
        with pyarrow.memory_map(str(path)) as file:
            try:
                table = pyarrow.ipc.open_file(file).read_all()
            except pyarrow.ArrowInvalid:
                file.seek(0)
                table = pyarrow.ipc.open_stream(file).read_all()
            for number, record in enumerate(table.to_pylist(), start=1):
                yield row_of(unpadded(record), f"{path} row {number}")
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(
            f"{path}: not readable as Arrow: {one_line(error)}; write the file again"
        ) from None
