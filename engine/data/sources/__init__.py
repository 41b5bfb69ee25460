"""Read rows from files, folders and hub datasets; content and ending decide the kind of a file."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO

from ...config.checks import (
    FILE_SUFFIXES,
    HUB_FILE,
    broken_links_of_pattern,
    describe_missing,
    files_of_pattern,
    is_pattern,
    root_of_pattern,
)
from ...config.data_reasons.rows import (
    CHANGED_FILES,
    ENCODING_GUESSED,
    MISSING_FILES,
    OTHER_SPLITS,
    SPLIT_VARIANTS,
    UNREAD_FILES,
)
from ...config.schema import TextUnit
from ...errors import DataError
from ..findings import Findings
from .columnar import ARROW_FILE, ARROW_STREAM, arrow_rows, parquet_rows
from .compression import DAMAGED
from .csv_tables import csv_rows
from .files import DataFile, encoding_of, open_file
from .folders import (
    FolderFiles,
    difference,
    files_of_split,
    is_data,
    missing_of_pattern,
    partition_values,
    refuse_broken_links,
)
from .hub import hub_rows
from .json_text import json_rows
from .json_values import BLANK
from .refusals import describe_markup
from .rows import Pass, Row, SourceRecord, one_line
from .text_rows import text_rows

__all__ = ["SourceRecord", "is_local", "open_rows", "read_rows"]

_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?(:[\w.-]+)?")
_PART = re.compile(r"[\[+]")
"""What the name of a part of a split has, such as `train[:10%]`."""
_TABLES = (".csv", ".tsv", ".tab")
_JSON = (".json", ".jsonl", ".ndjson")
_BEGINNING = 1 << 16
"""Characters in which a text shows whether it is JSON."""
_JSON_BEGINNING = re.compile(r"""[\[\s]*\{\s*(["'}]|$)|\[[\[\s]*(["\]]|$)""")


def is_local(source: str) -> bool:
    """Return whether a source is a file, a folder or a pattern of files on this machine."""
    path = Path(source).expanduser()
    return path.is_file() or path.is_dir() or is_pattern(source)


def read_rows(
    source: str, split: str, limit: int | None, findings: Findings, text: TextUnit = "line"
) -> list[SourceRecord]:
    """Read the first `limit` rows of a source, or all rows.

    Args:
        source: A file, a pattern of files, a folder, or a hub dataset id (`id:config` if it has
            several).
        split: Split of a folder, a hub dataset or a JSON object of splits; other files have none.
        limit: Largest number of rows to read; None reads all.
        findings: Receives rows that are left out, and what is guessed.
        text: What becomes a record of a plain text file.

    Raises:
        DataError: The source is missing, unreadable, or has no rows.
    """
    reader = _Reader(split, text, Pass(findings), streaming=False)
    rows = list(islice(reader.rows(source), limit))
    if not rows:
        raise DataError(f"{source}: no records; check the file, or choose another data.train")
    return rows


def open_rows(
    source: str,
    split: str,
    findings: Findings,
    start: int = 0,
    *,
    text: TextUnit = "line",
    noted: set[str] | None = None,
) -> Iterator[SourceRecord]:
    """Return an iterator over the rows of a source from number `start` on, read lazily.

    Args:
        source: A file, a pattern of files, a folder, or a hub dataset id.
        split: Split of a folder, a hub dataset or a JSON object of splits; other files have none.
        findings: Receives rows that are left out, and what is guessed.
        start: Number of rows that are skipped; rows that cannot be read do not count.
        text: What becomes a record of a plain text file.
        noted: What earlier passes over the source have counted, which is not counted again.

    Raises:
        DataError: The source is missing. The iterator raises it too, if a file or hub dataset
            cannot be read.
    """
    reading = Pass(findings, start, set() if noted is None else noted)
    return _Reader(split, text, reading, streaming=True).rows(source)


class _Reader:
    """Reads a source in one pass.

    Args:
        split: Split of a folder, of a hub dataset, or of a JSON object that has several splits.
        text: What becomes a record of a plain text file.
        reading: State of the pass, which also receives findings.
        streaming: Whether a hub dataset is streamed instead of downloaded.
    """

    def __init__(self, split: str, text: TextUnit, reading: Pass, *, streaming: bool) -> None:
        self._split = split
        self._text = text
        self._reading = reading
        self._streaming = streaming

    def rows(self, source: str) -> Iterator[SourceRecord]:
        """Return an iterator over the rows.

        Raises:
            DataError: The source is missing. The iterator raises it too, if a file or hub dataset
                cannot be read.
        """
        try:
            found = self._all_rows(source)
        except OSError as error:
            raise DataError(
                f"{source}: cannot be read: {error.strerror}; check the path and its permissions"
            ) from None
        return self._reading.good(found, source)

    def _all_rows(self, source: str) -> Iterator[Row]:
        path = Path(source).expanduser()
        if not source.strip():
            raise DataError(describe_missing(source))
        if is_local(source) and _PART.search(self._split):
            raise DataError(
                f"{source}: got the split {self._split!r}, but only datasets of the Hub have parts "
                "of splits; set data.train_limit to read the first rows, or write them to a file"
            )
        if path.is_file():
            return self._complete_rows(path)
        if path.is_dir():
            return self._rows_of_files(files_of_split(path, self._split), source, path)
        if is_pattern(source):
            refuse_broken_links(broken_links_of_pattern(source), source)
            files = files_of_pattern(source)
            data = [one for one in files if is_data(one)] or files
            found = FolderFiles(
                data, difference(files, data), missing=missing_of_pattern(data, source)
            )
            return self._rows_of_files(found, source, root_of_pattern(source))
        looks_like_file = source.endswith(FILE_SUFFIXES) or "\\" in source
        on_hub = _HUB_ID.fullmatch(source) and not looks_like_file
        if not on_hub and not source.startswith(HUB_FILE):
            raise DataError(describe_missing(source))
        start, self._reading.to_skip = self._reading.to_skip, 0
        return hub_rows(source, self._split, start, streaming=self._streaming)

    def _rows_of_files(self, files: FolderFiles, source: str, root: Path) -> Iterator[Row]:
        """Return the rows of several files; count the files that are not read.

        Args:
            files: The files.
            source: The folder or pattern that names them.
            root: A folder that they are in; names of folders in it may hold values of columns.

        Raises:
            DataError: There are no files, or one has no column in common with those before it.
        """
        if not files.read:
            raise DataError(describe_missing(source))
        for reason, unread in (
            (UNREAD_FILES, files.unread),
            (OTHER_SPLITS, files.of_other_splits),
            (MISSING_FILES, files.missing),
        ):
            self._reading.counted("files", len(unread), f"{source} {reason.name}")
            for file in unread:
                self._reading.note(reason, str(file))
        for file in files.variants:
            self._reading.note(SPLIT_VARIANTS, str(file))
        if self._reading.has_changed(source, "\n".join(map(str, files.read))):
            self._reading.note(CHANGED_FILES, source, "other files than before")
        return self._alike(files.read, source, root)

    def _alike(self, files: list[Path], source: str, root: Path) -> Iterator[Row]:
        known: dict[str, Path] = {}
        for file in files:
            fresh, empty = True, not self._reading.to_skip
            partition = partition_values(file, root)
            for row in self._complete_rows(file):
                empty = False
                if fresh and isinstance(row, SourceRecord):
                    fresh = False
                    _require_common_column(known, row, file, source)
                    known |= dict.fromkeys(row.values, file)
                if partition and isinstance(row, SourceRecord):
                    row = replace(row, values=partition | row.values)
                yield row
            if empty:
                self._reading.note(UNREAD_FILES, str(file), "no records")

    def _complete_rows(self, path: Path) -> Iterator[Row]:
        """Yield the rows of a file; errors of reading become a DataError that names the file.

        Raises:
            DataError: The file ends early, or its compression is damaged.
        """
        try:
            yield from self._rows_of_file(path)
        except DAMAGED as error:
            raise DataError(
                f"{path}: the file is damaged or ends early ({one_line(error)}); download it again"
            ) from None
        except UnicodeDecodeError as error:  # its encoding was found before
            raise DataError(
                f"{path}: the file was changed while it was read ({one_line(error)}); start again"
            ) from None

    def _rows_of_file(self, path: Path) -> Iterator[Row]:
        file, state = open_file(path), path.stat()
        self._reading.counted("files", 1, str(path))
        if self._reading.has_changed(str(path), f"{state.st_size} {state.st_mtime_ns}"):
            self._reading.note(CHANGED_FILES, str(path))
        if not file.head:
            return iter([])
        if file.head.startswith(b"PAR1"):
            return parquet_rows(file, self._reading)
        is_arrow = file.head.startswith((ARROW_FILE, ARROW_STREAM))
        if is_arrow or file.suffix in (".arrow", ".feather"):
            return arrow_rows(file, self._reading)
        return self._rows_of_text(file)

    def _rows_of_text(self, file: DataFile) -> Iterator[Row]:
        _require_data(file)
        encoding, place, reading = encoding_of(file), str(file.path), self._reading
        if encoding.guessed:
            reading.note(ENCODING_GUESSED, place, encoding.described)
        opened = partial(_open_text, file, encoding.name)
        if file.suffix in _TABLES:
            return csv_rows(opened, place, file.suffix, reading)
        if file.suffix in _JSON or _begins_like_json(opened):
            return json_rows(opened, place, self._split, reading)
        return text_rows(opened, place, self._text, reading)


def _require_common_column(
    known: dict[str, Path], row: SourceRecord, file: Path, source: str
) -> None:
    """Raise if the rows of a file have no column in common with the files before it.

    Raises:
        DataError: There is no common column.
    """
    if known and known.keys().isdisjoint(row.values):
        first = next(iter(known.values()))
        names = [name for name, one in known.items() if one == first]
        raise DataError(
            f"{source}: files of different kinds: {first.name} has the columns {', '.join(names)}, "
            f"but {file.name} has {', '.join(row.values)}; name one file, or a pattern of files "
            f"such as {source.rstrip('/')}/*{first.suffix}"
        )


def _open_text(file: DataFile, encoding: str) -> IO[str]:
    return io.TextIOWrapper(file.open_bytes(), encoding=encoding, newline="")


def _require_data(file: DataFile) -> None:
    """Raise if a text file cannot hold records, by the ending of its name.

    Raises:
        DataError: The content contradicts the ending, or it is YAML or TOML.
    """
    if file.suffix == ".parquet":
        raise DataError(f"{file.path}: not readable as Parquet; write the file again")
    if file.suffix in (".yaml", ".yml", ".toml"):
        raise file.refuse(
            "YAML or TOML; convert it to JSON lines, or check a configuration with fttui check"
        )
    if file.suffix in (*_TABLES, *_JSON) and (what := describe_markup(file.head)):
        raise file.refuse(what)


def _begins_like_json(opened: Callable[[], IO[str]]) -> bool:
    """Whether a text begins like JSON records; a text that only begins with a bracket does not."""
    with opened() as text:
        beginning = text.read(_BEGINNING).lstrip(BLANK)
    return _JSON_BEGINNING.match(beginning) is not None
