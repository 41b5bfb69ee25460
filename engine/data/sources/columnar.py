"""Rows of columnar files: Parquet and Arrow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...errors import DataError
from .files import DataFile
from .rows import Pass, Row, one_line, row_of, unpadded


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
        file = pyarrow.parquet.ParquetFile(content)
        groups, number = list(range(file.num_row_groups)), 0
        while groups and (rows := file.metadata.row_group(groups[0]).num_rows) <= reading.to_skip:
            reading.to_skip -= rows
            number += rows
            groups.pop(0)
        batches = file.iter_batches(row_groups=groups) if groups else ()
        yield from _rows_of_batches(batches, path, number, reading)
    except (pyarrow.ArrowException, OSError, ValueError) as error:
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
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise DataError(
            f"{path}: not readable as Arrow: {one_line(error)}; write the file again"
        ) from None


def _arrow_batches(file: Any) -> Iterator[Any]:
    import pyarrow
    import pyarrow.ipc

    try:
        reader = pyarrow.ipc.open_file(file)
    except pyarrow.ArrowInvalid:
        file.seek(0)
        yield from pyarrow.ipc.open_stream(file)
    else:
        yield from map(reader.get_batch, range(reader.num_record_batches))


def _rows_of_batches(batches: Any, path: Path, number: int, reading: Pass) -> Iterator[Row]:
    """Yield the rows of record batches; `number` is the number of rows before them in the file.

    Rows to skip are left out and subtracted from those that `reading` still has to skip.

    Raises:
        DataError: Several columns have the same name.
    """
    for batch in batches:
        if repeated := _repeated(batch.schema.names):
            raise DataError(
                f"{path}: has several columns named {repeated!r}; rename or remove all but one of "
                "them"
            )
        skipped = min(reading.to_skip, batch.num_rows)
        reading.to_skip -= skipped
        number += skipped
        # Maps become objects, which takes several times as long, also for columns without maps.
        maps = "lossy" if any(_has_maps(field.type) for field in batch.schema) else None
        for record in batch.slice(skipped).to_pylist(maps_as_pydicts=maps):
            number += 1
            yield row_of(unpadded(record), f"{path} row {number}")


def _has_maps(kind: Any) -> bool:
    """Whether a type of Arrow is a map, or has one inside."""
    import pyarrow

    if pyarrow.types.is_map(kind):
        return True
    return any(_has_maps(kind.field(number).type) for number in range(kind.num_fields))


def _repeated(names: list[str]) -> str:
    return next((name for name in names if names.count(name) > 1), "")
