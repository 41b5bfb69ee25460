"""Rows of columnar files: Parquet and Arrow."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...config.data_reasons.rows import REPEATED_KEYS
from ...errors import DataError
from .files import DataFile
from .rows import BrokenRow, Pass, Row, one_line, row_of, unpadded

ARROW_FILE = b"ARROW1"
"""First bytes of an Arrow file, which has a footer."""
ARROW_STREAM = b"\xff\xff\xff\xff"
"""First bytes of an Arrow stream, which `datasets` writes."""
_ROWS_AT_ONCE = 1024
"""Rows that are in memory as values of Python at a time."""
_END_OF_STREAM = ARROW_STREAM + bytes(4)


def parquet_rows(source: DataFile, reading: Pass) -> Iterator[Row]:
    """Yield the rows of a Parquet file; row groups that are skipped are not read.

    Raises:
        DataError: The file cannot be read as Parquet, or has several columns of one name.
    """
    with source.seekable() as content:
        yield from _parquet_rows(content, source.path, reading)


def _parquet_rows(content: Path, path: Path, reading: Pass) -> Iterator[Row]:
    """Yield the rows of Parquet content; errors and places name the `path` that the user gave.

    Rows to skip are left out and subtracted from those that `reading` still has to skip.

    Raises:
        DataError: The content cannot be read as Parquet, or has several columns of one name.
    """
    import pyarrow  # deferred, as datasets is: only these sources need it
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(content, page_checksum_verification=True)
        groups, number = list(range(file.num_row_groups)), 0
        while groups and (rows := file.metadata.row_group(groups[0]).num_rows) <= reading.to_skip:
            reading.to_skip -= rows
            number += rows
            groups.pop(0)
        batches = file.iter_batches(_ROWS_AT_ONCE, row_groups=groups) if groups else ()
        yield from _rows_of_batches(batches, path, number, reading)
    except (pyarrow.ArrowException, OSError, ValueError, LookupError) as error:
        raise DataError(
            f"{path}: not readable as Parquet: {one_line(error)}; write the file again"
        ) from None


def arrow_rows(source: DataFile, reading: Pass) -> Iterator[Row]:
    """Yield the rows of an Arrow file or stream.

    Raises:
        DataError: The file cannot be read as Arrow, or has several columns of one name.
    """
    with source.seekable() as content:
        yield from _arrow_rows(content, source.path, reading)


def _arrow_rows(content: Path, path: Path, reading: Pass) -> Iterator[Row]:
    """Yield the rows of Arrow content; errors and places name the `path` that the user gave.

    Raises:
        DataError: The content cannot be read as Arrow, or has several columns of one name.
    """
    import pyarrow

    try:
        with pyarrow.memory_map(str(content)) as file:
            yield from _rows_of_batches(_arrow_batches(file), path, 0, reading)
    except (pyarrow.ArrowException, OSError, ValueError, LookupError) as error:
        raise DataError(
            f"{path}: not readable as Arrow: {one_line(error)}; write the file again"
        ) from None


def _arrow_batches(file: Any) -> Iterator[Any]:
    """Yield the record batches of an Arrow file, or of a stream, which has no footer.

    Raises:
        EOFError: A stream ends without its end mark, so that batches may be missing.
    """
    import pyarrow.ipc

    magic = file.read(len(ARROW_FILE))
    file.seek(0)
    if magic == ARROW_FILE:
        reader = pyarrow.ipc.open_file(file)
        yield from map(reader.get_batch, range(reader.num_record_batches))
        return
    yield from pyarrow.ipc.open_stream(file)
    file.seek(max(0, file.size() - len(_END_OF_STREAM)))
    if file.read() != _END_OF_STREAM:
        raise EOFError("the Arrow stream has no end mark")


def _rows_of_batches(batches: Any, path: Path, number: int, reading: Pass) -> Iterator[Row]:
    """Yield the rows of record batches; `number` is the number of rows before them in the file.

    Rows to skip are left out and subtracted from those that `reading` still has to skip. A stream
    without its end mark ends with a `BrokenRow`.

    Raises:
        DataError: Several columns have the same name, or a cell cannot be read.
    """
    try:
        for batch in batches:
            _require_distinct(batch.schema.names, path)
            skipped = min(reading.to_skip, batch.num_rows)
            reading.to_skip -= skipped
            number += skipped
            for start in range(skipped, batch.num_rows, _ROWS_AT_ONCE):
                for cells in _cells_of_rows(batch.slice(start, _ROWS_AT_ONCE)):
                    number += 1
                    yield _row(batch.schema.names, cells, f"{path} row {number}", reading)
    except EOFError as error:
        yield BrokenRow(
            f"{path} row {number + 1}",
            f"{error}, so rows may be missing from here on; write the file again",
        )


def _require_distinct(names: list[str], path: Path) -> None:
    """Raise if several columns have the same name.

    Raises:
        DataError: There are such columns.
    """
    if repeated := next((name for name in names if names.count(name) > 1), ""):
        raise DataError(
            f"{path}: has several columns named {repeated!r}; rename or remove all but one of them"
        )


@dataclass(frozen=True)
class _Unreadable:
    """A cell that has no value in Python."""

    reason: str


@dataclass(frozen=True)
class _RepeatedKey:
    """A cell with a map that has a key twice."""

    value: Any
    """The cell with the last value of the key."""


def _cells_of_rows(batch: Any) -> Iterator[tuple[Any, ...]]:
    # Converting whole columns takes less than half the time of converting rows.
    return zip(*map(_cells, batch.columns), strict=True)


def _cells(column: Any) -> list[Any]:
    """Return the values of a column; a cell that cannot be converted does not hide the others.

    A time that Python cannot represent is the stored number.
    """
    # Maps become objects, which takes several times as long, also for columns without maps.
    maps = "strict" if _has_maps(column.type) else None
    try:
        found: list[Any] = column.to_pylist(maps_as_pydicts=maps)
    except (ArithmeticError, LookupError, ValueError):
        numbers = _with_numbers(column)
        return [_cell(one, other, maps) for one, other in zip(column, numbers, strict=True)]
    return found


def _cell(cell: Any, with_numbers: Any, maps: str | None) -> Any:
    """Return the value of one cell; `with_numbers` is the cell with numbers in place of times."""
    try:
        return cell.as_py(maps_as_pydicts=maps)
    except UnicodeDecodeError:
        return _Unreadable("a text is not UTF-8")
    except (ArithmeticError, LookupError, ValueError) as error:
        if "duplicate key" in str(error):
            with warnings.catch_warnings(action="ignore"):
                return _RepeatedKey(cell.as_py(maps_as_pydicts="lossy"))
        if with_numbers is cell:
            return _Unreadable(one_line(error))
        return _cell(with_numbers, with_numbers, maps)


def _with_numbers(column: Any) -> Any:
    """Return a column with the stored numbers in place of times; unchanged if it has none."""
    import pyarrow

    try:
        return column.cast(_numeric(column.type))
    except pyarrow.ArrowException:
        return column


def _numeric(kind: Any) -> Any:
    """Return a type of Arrow with integers in place of times."""
    import pyarrow
    from pyarrow import types

    if types.is_temporal(kind):
        return pyarrow.int32() if kind.bit_width == 32 else pyarrow.int64()
    if types.is_struct(kind):
        return pyarrow.struct([one.with_type(_numeric(one.type)) for one in kind])
    if types.is_list(kind) or types.is_large_list(kind):
        make = pyarrow.list_ if types.is_list(kind) else pyarrow.large_list
        return make(kind.value_field.with_type(_numeric(kind.value_type)))
    return kind


def _row(names: list[str], cells: tuple[Any, ...], place: str, reading: Pass) -> Row:
    """Return the cells of a row as a row; count maps that have a key twice.

    Raises:
        DataError: A cell cannot be read.
    """
    record = {}
    for name, cell in zip(names, cells, strict=True):
        if isinstance(cell, _Unreadable):
            # Rows that are skipped are not read, so none of them may be left out.
            raise DataError(f"{place}: column {name!r}: {cell.reason}; write the file again")
        if isinstance(cell, _RepeatedKey):
            reading.note(REPEATED_KEYS, place, f"in a map in column {name!r}")
            cell = cell.value
        record[name] = cell
    return row_of(unpadded(record), place)


def _has_maps(kind: Any) -> bool:
    """Whether a type of Arrow is a map, or has one inside."""
    import pyarrow

    if pyarrow.types.is_map(kind):
        return True
    return any(_has_maps(kind.field(number).type) for number in range(kind.num_fields))
