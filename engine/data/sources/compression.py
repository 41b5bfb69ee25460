"""Open compressed files: gzip, bzip2, xz, zstd, or the only file of a zip archive."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zipfile
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple

from ...errors import DataError
from .refusals import describe_archive

DAMAGED = (EOFError, OSError, zlib.error, lzma.LZMAError, zipfile.BadZipFile)
"""What is raised when compressed content is damaged or ends early."""
UNREADABLE_ZIP = (RuntimeError, NotImplementedError)
"""What zipfile raises for archives with a password, and for rare kinds of compression."""
_ENDINGS = (".gz", ".gzip", ".bz2", ".bz", ".xz", ".lzma", ".zst", ".zstd", ".zip")
_READ_AT_ONCE = 1 << 16
"""Compressed bytes that are read at once."""
_ZSTANDARD = (b"(\xb5/\xfd", *(bytes([0x50 + number]) + b"\x2a\x4d\x18" for number in range(16)))
"""First bytes of a frame of zstd, and of a frame that is skipped, with which pzstd begins."""


class Decompressed(NamedTuple):
    """The content of a file without its compression."""

    open_bytes: Callable[[], IO[bytes]]
    name: str
    """Name of the content, without the ending of the compression."""


def decompressed(path: Path) -> Decompressed:
    """Return the content of a file, whose compression is recognized by its first bytes.

    Raises:
        OSError: The file cannot be read.
        DataError: It is a zip archive that does not hold exactly one file.
        BadZipFile, RuntimeError, NotImplementedError: A zip archive cannot be read.
    """
    with path.open("rb") as file:
        start = file.read(8)
    name = _without_ending(path.name)
    for magic, opener in _OPENERS:
        if start.startswith(magic):
            return Decompressed(partial(opener, path), name)
    if start.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return _zipped(path, name)
    return Decompressed(lambda: path.open("rb"), name)


def _without_ending(name: str) -> str:
    """Return a name without the ending of a compression, whether or not the file is compressed.

    Some servers send a compressed file unpacked under its old name.
    """
    found = next((one for one in _ENDINGS if name.lower().endswith(one)), "")
    return name[: len(name) - len(found)]


class _Members(io.RawIOBase):
    """The content of compressed members one after the other.

    Unlike the readers of bz2 and lzma, it raises for a later member that is damaged, instead of
    ending before it. Zero bytes behind a member are padding.

    Args:
        path: The file.
        new: Returns a decompressor for one member.
    """

    def __init__(self, path: Path, new: Callable[[], Any]) -> None:
        self._file = path.open("rb")
        self._new = new
        self._member = new()

    def readable(self) -> bool:
        """Whether the content can be read: always."""
        return True

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        super().close()

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer with content; return the number of bytes, which is 0 at the end.

        Raises:
            EOFError: The last member is not complete.
            OSError, LZMAError: A member is damaged.
        """
        found = b""
        while not found:
            if self._member.eof and not (raw := self._behind_member()):
                return 0
            if self._member.eof:
                self._member = self._new()
            else:
                raw = self._more() if self._member.needs_input else b""
            found = self._member.decompress(raw, len(buffer))
        buffer[: len(found)] = found
        return len(found)

    def _more(self) -> bytes:
        if raw := self._file.read(_READ_AT_ONCE):
            return raw
        raise EOFError("Compressed file ended before the end-of-stream marker was reached")

    def _behind_member(self) -> bytes:
        """Return the beginning of the next member; nothing if the file ends."""
        raw: bytes = self._member.unused_data.lstrip(b"\0")
        while not raw and (more := self._file.read(_READ_AT_ONCE)):
            raw = more.lstrip(b"\0")
        return raw


def _bzip2(path: Path) -> IO[bytes]:
    return io.BufferedReader(_Members(path, bz2.BZ2Decompressor))


def _xz(path: Path) -> IO[bytes]:
    return io.BufferedReader(_Members(path, lzma.LZMADecompressor))


def _gzip(path: Path) -> IO[bytes]:
    return io.BufferedReader(gzip.GzipFile(path, "rb"))


def _zstandard(path: Path) -> IO[bytes]:
    import pyarrow  # deferred: only these files need it

    return io.BufferedReader(pyarrow.CompressedInputStream(str(path), "zstd"))


_OPENERS: tuple[tuple[bytes, Callable[[Path], IO[bytes]]], ...] = (
    (b"\x1f\x8b", _gzip),
    (b"BZh", _bzip2),
    (b"\xfd7zXZ\x00", _xz),
    (b"\x5d\x00\x00", _xz),
    *((magic, _zstandard) for magic in _ZSTANDARD),
)


def _zipped(path: Path, outer: str) -> Decompressed:
    """Return the only file of an archive; its name is `outer` if its own has no ending."""
    with zipfile.ZipFile(path) as archive:
        names = [one for one in archive.namelist() if not one.endswith("/")]
        mimetype = archive.read("mimetype").decode("latin-1") if "mimetype" in names else ""
    if what := describe_archive(names, mimetype):
        raise DataError(f"{path}: this file is {what}")
    names = [one for one in names if not one.startswith("__MACOSX/") and "/." not in f"/{one}"]
    if len(names) != 1:
        listed = ", ".join(names[:5]) or "none"
        raise DataError(
            f"{path}: the archive holds {len(names)} files ({listed}), expected one; unpack it and "
            "name a file or the folder"
        )
    inner = Path(names[0]).name
    return Decompressed(
        lambda: zipfile.ZipFile(path).open(names[0]), inner if Path(inner).suffix else outer
    )
