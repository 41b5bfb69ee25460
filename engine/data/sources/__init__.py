"""Read rows from files, folders and hub datasets; files are recognized by their content."""

from __future__ import annotations

import io
import lzma
import re
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import IO

from ...config.checks import FILE_SUFFIXES, describe_missing
from ...config.data_reasons import BROKEN_ROWS, ENCODING_GUESSED, TEXT_LINES
from ...errors import DataError
from ..findings import Findings
from .files import DataFile, encoding_of, open_file
from .folders import files_of_split
from .hub import hub_rows
from .json_text import json_rows
from .rows import BrokenRow, Row, SourceRecord, one_line
from .tables import arrow_rows, csv_rows, parquet_rows

__all__ = ["SourceRecord", "open_rows", "read_rows"]

_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?(:[\w.-]+)?")
_TABLES = (".csv", ".tsv", ".tab")
_JSON = (".json", ".jsonl", ".ndjson")


def read_rows(source: str, split: str, limit: int | None, findings: Findings) -> list[SourceRecord]:
    """Read the first `limit` rows of a source, or all rows.

    Args:
        source: A file, a folder, or a hub dataset id (`id:config` if it has several).
        split: Split of a folder or hub dataset; files have none.
        limit: Largest number of rows to read; None reads all.
        findings: Receives rows that are left out, and what is guessed.

    Raises:
        DataError: The source is missing, unreadable, or has no rows.
    """
    rows = list(islice(_rows(source, split, 0, findings, streaming=False), limit))
    if not rows:
        raise DataError(f"{source}: no records; check the file, or choose another data.train")
    return rows


def open_rows(
    source: str, split: str, findings: Findings, start: int = 0
) -> Iterator[SourceRecord]:
    """Return an iterator over the rows of a source from number `start` on, read lazily.

    Raises:
        DataError: The source is missing or unreadable; the iterator raises it at an invalid row.
    """
    return _rows(source, split, start, findings, streaming=True)


def _rows(
    source: str, split: str, start: int, findings: Findings, *, streaming: bool
) -> Iterator[SourceRecord]:
    path = Path(source).expanduser()
    if path.is_file():
        return _good(_complete_rows(path, split, start, findings), source, findings)
    if path.is_dir():
        files = files_of_split(path, split)
        parts = [_complete_rows(one, split, 0, findings) for one in files]
        rows = _good(chain.from_iterable(parts), source, findings)
        return islice(rows, start, None)
    looks_like_file = source.endswith(FILE_SUFFIXES) or "\\" in source
    if looks_like_file or not _HUB_ID.fullmatch(source):
        raise DataError(describe_missing(path))
    return _good(hub_rows(source, split, start, streaming=streaming), source, findings)


def _good(rows: Iterator[Row], source: str, findings: Findings) -> Iterator[SourceRecord]:
    """Yield the rows that can be read, and note the others.

    Raises:
        DataError: No row can be read.
    """
    good, broken = 0, None
    for row in rows:
        if isinstance(row, BrokenRow):
            broken = broken or row
            findings.counted("records", 1)
            findings.note(BROKEN_ROWS, row.place, row.reason)
        else:
            good += 1
            yield row
    if broken and not good:
        raise DataError(f"{broken.place}: {broken.reason}; no row of {source} can be read")


def _complete_rows(path: Path, split: str, start: int, findings: Findings) -> Iterator[Row]:
    """Yield the rows of a file, to its end.

    Raises:
        DataError: The file ends early, or its compression is damaged.
    """
    try:
        yield from _file_rows(path, split, start, findings)
    except (EOFError, zlib.error, lzma.LZMAError, OSError) as error:
        raise DataError(
            f"{path}: the file is damaged or ends early ({one_line(error)}); download it again"
        ) from None


def _file_rows(path: Path, split: str, start: int, findings: Findings) -> Iterator[Row]:
    file = open_file(path)
    if file.head.startswith(b"PAR1"):
        _require_plain(file, "Parquet")
        yield from parquet_rows(path, start)
    elif file.head.startswith(b"ARROW1") or file.suffix in (".arrow", ".feather"):
        _require_plain(file, "Arrow")
        yield from islice(arrow_rows(path), start, None)
    else:
        yield from islice(_text_rows(file, split, findings), start, None)


def _require_plain(file: DataFile, what: str) -> None:
    if file.name != file.path.name:
        raise DataError(f"{file.path}: {what} in a compressed file; unpack it")


def _text_rows(file: DataFile, split: str, findings: Findings) -> Iterator[Row]:
    encoding = encoding_of(file)
    findings.counted("files", 1)
    findings.note(ENCODING_GUESSED, str(file.path), encoding.name, count=encoding.guessed)
    opened = partial(_open_text, file, encoding.name)
    place = str(file.path)
    if file.suffix in _TABLES:
        return csv_rows(opened, place, file.suffix)
    if file.suffix == ".parquet":
        raise DataError(f"{file.path}: not readable as Parquet; write the file again")
    if file.suffix in _JSON or _first_character(opened) in ("{", "["):
        return json_rows(opened, place, split)
    findings.note(TEXT_LINES, place)
    return _line_rows(opened, place)


def _open_text(file: DataFile, encoding: str) -> IO[str]:
    return io.TextIOWrapper(file.open_bytes(), encoding=encoding, newline="")


def _first_character(opened: Callable[[], IO[str]]) -> str:
    with opened() as text:
        return next((line.strip()[0] for line in text if line.strip()), "")


def _line_rows(opened: Callable[[], IO[str]], place: str) -> Iterator[Row]:
    with opened() as text:
        for number, line in enumerate(text, start=1):
            if line.strip():
                yield SourceRecord({"text": line.rstrip("\r\n")}, f"{place}:{number}")
