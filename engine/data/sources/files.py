"""Open a data file: undo its compression, find its encoding, and refuse what holds no data."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

from ...errors import DataError

_HEAD = 1 << 16
"""Bytes by which the content of a file is recognized."""
_POOR = 0.2
"""Share of disorder above which a guessed encoding is not trusted."""
_NEAR = 0.05
"""Difference of two guesses below which they are about as good."""
_COMPRESSED: tuple[tuple[bytes, Callable[..., Any]], ...] = (
    (b"\x1f\x8b", gzip.open),
    (b"BZh", bz2.open),
    (b"\xfd7zXZ\x00", lzma.open),
)
_REFUSED: tuple[tuple[bytes, str], ...] = (
    (b"version https://git-lfs", "a pointer of Git LFS, not the data; run: git lfs pull"),
    (b"<!doctype html", "a web page, not the data; download the raw file"),
    (b"<html", "a web page, not the data; download the raw file"),
    (b"<?xml", "XML; convert it to JSON lines or CSV"),
    (b"%pdf", "a PDF; extract its text first"),
    (b"\xd0\xcf\x11\xe0", "an old Excel or Word file; save it as CSV"),
    (b"\x80\x04", "a Python pickle, which is not safe to read; write it as JSON lines"),
    (b"\x80\x05", "a Python pickle, which is not safe to read; write it as JSON lines"),
    (b"sqlite format 3", "an SQLite database; export a table as CSV"),
    (b"\x89hdf", "an HDF5 file; write it as Parquet or JSON lines"),
)


@dataclass(frozen=True)
class DataFile:
    """A readable data file."""

    path: Path
    open_bytes: Callable[[], IO[bytes]]
    """Opens the content without compression."""
    head: bytes
    """The first bytes of the content."""
    name: str
    """Its name without the ending of the compression."""

    @property
    def suffix(self) -> str:
        """The ending of the name, in lower case."""
        return Path(self.name).suffix.lower()

    def refuse(self, what: str) -> DataError:
        """Return the error that the file holds something else."""
        return DataError(f"{self.path}: this file is {what}")


def open_file(path: Path) -> DataFile:
    """Return a file whose content can be read.

    Raises:
        DataError: The file cannot be read, or holds no data.
    """
    try:
        opened = _opened(path)
        with opened.open_bytes() as file:
            head = file.read(_HEAD)
    except (OSError, EOFError, lzma.LZMAError, zipfile.BadZipFile) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(
            f"{path}: cannot be read: {reason}; check the path, its permissions and whether the "
            "file is complete"
        ) from None
    found = DataFile(path, opened.open_bytes, head, opened.name)
    if head.startswith(b"ORC"):
        raise found.refuse("an ORC file; write it as Parquet")
    lowered = head.lstrip(b"\xef\xbb\xbf \t\r\n")[:64].lower()
    for start, what in _REFUSED:
        if lowered.startswith(start):
            raise found.refuse(what)
    return found


def _opened(path: Path) -> DataFile:
    with path.open("rb") as file:
        start = file.read(8)
    name = path.name
    for magic, opener in _COMPRESSED:
        if start.startswith(magic):
            inner = Path(name).stem if Path(name).suffix in (".gz", ".bz2", ".xz") else name
            return DataFile(path, partial(opener, path, "rb"), b"", inner)
    if start.startswith(b"(\xb5/\xfd"):
        return _zstandard(path)
    if start.startswith(b"PK\x03\x04"):
        return _zipped(path)
    return DataFile(path, lambda: path.open("rb"), b"", name)


def _zstandard(path: Path) -> DataFile:
    import pyarrow

    def opened() -> IO[bytes]:
        return io.BufferedReader(pyarrow.CompressedInputStream(str(path), "zstd"))

    return DataFile(path, opened, b"", path.name.removesuffix(".zst"))


def _zipped(path: Path) -> DataFile:
    with zipfile.ZipFile(path) as archive:
        names = [one for one in archive.namelist() if not one.endswith("/")]
    if "[Content_Types].xml" in names:
        raise DataError(f"{path}: this file is an Excel or Word file; save it as CSV")
    names = [one for one in names if not one.startswith("__MACOSX/") and "/." not in f"/{one}"]
    if len(names) != 1:
        listed = ", ".join(names[:5]) or "none"
        raise DataError(
            f"{path}: the archive holds {len(names)} files ({listed}), expected one; unpack it and "
            "name a file or the folder"
        )
    return DataFile(path, lambda: zipfile.ZipFile(path).open(names[0]), b"", names[0])


@dataclass(frozen=True)
class Encoding:
    """The encoding of a text file."""

    name: str
    guessed: bool = False


def encoding_of(file: DataFile) -> Encoding:
    """Return the encoding of a file, by its byte-order mark, as UTF-8, or by its bytes.

    Raises:
        DataError: The file is no text, or its encoding cannot be guessed.
    """
    for mark, name in (
        (b"\xef\xbb\xbf", "utf-8-sig"),
        (b"\xff\xfe\x00\x00", "utf-32"),
        (b"\x00\x00\xfe\xff", "utf-32"),
        (b"\xff\xfe", "utf-16"),
        (b"\xfe\xff", "utf-16"),
    ):
        if file.head.startswith(mark):
            return Encoding(name)
    if wide := _wide(file.head):
        return Encoding(wide, guessed=True)
    if b"\x00" in file.head:
        raise file.refuse("binary, not text; write it as JSON lines, CSV or Parquet")
    return Encoding("utf-8") if _is_utf8(file) else _guessed(file)


def _wide(head: bytes) -> str | None:
    """Return UTF-16 without a byte-order mark, by the zero bytes of ASCII characters."""
    zeros = [head[start:400:2].count(0) for start in (0, 1)]
    half = len(head[:400]) // 2
    if half > 3 and max(zeros) > 0.6 * half and min(zeros) == 0:
        return "utf-16-le" if zeros[1] > zeros[0] else "utf-16-be"
    return None


def _is_utf8(file: DataFile) -> bool:
    with file.open_bytes() as opened:
        text = io.TextIOWrapper(opened, encoding="utf-8", errors="strict")
        try:
            while text.read(1 << 22):
                pass
        except UnicodeDecodeError:
            return False
    return True


def _likely(matches: Iterable[Any], best: Any) -> Any:
    """Return the best match, or cp1252 if it is about as good, because most old files have it."""
    for one in matches:
        near = best.chaos + _NEAR >= one.chaos and one.coherence + _NEAR >= best.coherence
        if one.encoding == "cp1252" and near:
            return one
    return best


def _refuse_damaged_utf8(file: DataFile) -> None:
    """Raise if a file is UTF-8 but for a few bytes: another encoding would garble all the rest.

    Raises:
        DataError: Most characters beyond ASCII are UTF-8.
    """
    with file.open_bytes() as opened:
        raw = opened.read()
    text = raw.decode("utf-8", "replace")
    wrong = text.count("\ufffd")
    right = sum(not character.isascii() for character in text) - wrong
    if right > wrong:
        try:
            raw.decode("utf-8")
        except UnicodeDecodeError as error:
            line = raw.count(b"\n", 0, error.start) + 1
            raise DataError(
                f"{file.path}:{line}: byte {raw[error.start]:#04x} is not UTF-8, unlike the rest "
                f"of the file ({error.reason}); correct or remove this line"
            ) from None


def _guessed(file: DataFile) -> Encoding:
    from charset_normalizer import from_bytes  # deferred: only few files need it

    _refuse_damaged_utf8(file)
    with file.open_bytes() as opened:
        matches = from_bytes(opened.read(1 << 20))
    found = _likely(matches, matches.best())
    if found is None or found.chaos > _POOR or found.encoding is None:
        raise DataError(
            f"{file.path}: not UTF-8 text, and its encoding cannot be guessed; save it as UTF-8"
        )
    try:
        with file.open_bytes() as opened:
            opened.read().decode(found.encoding)
    except UnicodeDecodeError as error:
        raise DataError(f"{file.path}: not UTF-8 text ({error.reason}); save it as UTF-8") from None
    return Encoding(found.encoding, guessed=True)
