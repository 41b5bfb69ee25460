"""Read rows from JSONL, JSON and Parquet files, folders and hub datasets."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from ..config.checks import FILE_SUFFIXES, describe_missing
from ..errors import DataError, SourceUnreachable


@dataclass(frozen=True)
class SourceRecord:
    """One row as stored."""

    values: dict[str, Any]
    place: str
    """Where it is stored, such as `train.jsonl:7`."""


def read_rows(source: str, split: str, limit: int | None = None) -> list[SourceRecord]:
    """Read the first `limit` rows of a source, or all rows.

    Args:
        source: A file, a folder, or a hub dataset id (`id:config` if it has several).
        split: Split of a folder or hub dataset; files have none.
        limit: Largest number of rows to read; None reads all.

    Raises:
        DataError: The source is missing, unreadable, or has no rows.
    """
    path = Path(source)
    if path.is_file():
        rows = list(islice(_file_rows(path), limit))
    elif source.endswith(FILE_SUFFIXES) or (not path.is_dir() and not _HUB_ID.fullmatch(source)):
        raise DataError(describe_missing(path))
    else:
        rows = list(islice(_hub_rows(source, split), limit))
    if not rows:
        raise DataError(f"{source}: no records; check the file, or choose another data.train")
    return rows


def open_rows(source: str, split: str, start: int = 0) -> Iterator[SourceRecord]:
    """Return an iterator over the rows of a source from number `start` on, read lazily.

    Lines before the start are skipped without being parsed, as are whole row groups of a Parquet
    file.

    Raises:
        DataError: The source is missing or unreadable; the iterator raises it at an invalid row.
    """
    path = Path(source)
    if path.suffix in (".jsonl", ".ndjson") and path.is_file():
        return _jsonl_rows(path, start)
    if path.suffix == ".parquet" and path.is_file():
        return _parquet_rows(path, start)
    if source.endswith(FILE_SUFFIXES) or (not path.is_dir() and not _HUB_ID.fullmatch(source)):
        raise DataError(describe_missing(path))
    return _hub_rows(source, split, start, streaming=True)


_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?(:[\w.-]+)?")


def _file_rows(path: Path) -> Iterator[SourceRecord]:
    if path.suffix == ".parquet":
        return _parquet_rows(path)
    if path.suffix == ".json":
        return _json_rows(path)
    if path.suffix in (".jsonl", ".ndjson"):
        return _jsonl_rows(path)
    raise DataError(
        f"{path}: got a file ending in '{path.suffix}', expected one of {', '.join(FILE_SUFFIXES)}"
    )


def _jsonl_rows(path: Path, start: int = 0) -> Iterator[SourceRecord]:
    passed = 0
    try:
        with path.open(encoding="utf-8-sig") as lines:
            for number, line in enumerate(lines, start=1):
                if not line.strip():
                    continue
                passed += 1
                if passed > start:
                    yield _row(_parsed(line.strip(), f"{path}:{number}"), f"{path}:{number}")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text ({error.reason}); save it as UTF-8") from None
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read: {error.strerror}; check the path and its permissions"
        ) from None


def _json_rows(path: Path) -> Iterator[SourceRecord]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"{path}: cannot be read: {error}; check the path and its encoding"
        ) from None
    records = _parsed(text, str(path))
    if not isinstance(records, list):
        raise DataError(
            f"{path}: got one {type(records).__name__}, expected a list of records; write a list, "
            "or one record per line in a .jsonl file"
        )
    for number, record in enumerate(records, start=1):
        yield _row(record, f"{path} record {number}")


def _parquet_rows(path: Path, start: int = 0) -> Iterator[SourceRecord]:
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
                    yield _row(record, f"{path} row {number}")
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(
            f"{path}: not readable as Parquet: {_one_line(error)}; write the file again"
        ) from None


def _hub_rows(
    source: str, split: str, start: int = 0, *, streaming: bool = False
) -> Iterator[SourceRecord]:
    import datasets

    name, _, subset = source.partition(":")
    try:
        dataset = datasets.load_dataset(name, subset or None, split=split, streaming=streaming)
        dataset = dataset.skip(start) if start else dataset
    except Exception as error:  # noqa: BLE001  # the library raises many exception types
        raise _hub_failure(source, split, error) from None
    for number, record in enumerate(dataset, start=start + 1):
        yield _row(record, f"{source}[{split}] row {number}")


def _hub_failure(source: str, split: str, error: Exception) -> DataError:
    what = f"{source} (split {split}): {type(error).__name__}: {_one_line(error)}"
    hint = "check the id, the network and `hf auth login`, or give a file"
    if isinstance(error, ConnectionError) or "offline" in str(error).lower():
        return SourceUnreachable(
            f"{what}; the hub cannot be reached; set data.train to a file, or connect and try again"
        )
    if "split" in str(error).lower():
        hint = "set data.train_split and data.eval_split to existing splits"
    elif "config" in str(error).lower():
        hint = f"choose one of its configurations, such as {source}:main"
    return DataError(f"{what}; {hint}")


def _parsed(text: str, place: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        where = place if error.lineno == 1 else f"{place}:{error.lineno}"
        raise DataError(
            f"{where}: not valid JSON at column {error.colno}: {error.msg}; correct this line"
        ) from None
    except RecursionError:
        raise DataError(f"{place}: nested too deeply to be a record") from None


def _row(record: Any, place: str) -> SourceRecord:
    if not isinstance(record, dict):
        raise DataError(
            f"{place}: got {type(record).__name__}, expected an object such as "
            '{"prompt": …, "completion": …}'
        )
    return SourceRecord(record, place)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
