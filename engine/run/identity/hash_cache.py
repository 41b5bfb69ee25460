"""A cache of sha256 hashes of files, so that unchanged weights and data are hashed only once.

A hash is valid for one path, inode, size, modification time and change time. Every hash has a file
of its own, which is replaced atomically, so that processes may write at the same time; a damaged
file is ignored and written again.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from ..files import hash_file, write_atomically

SMALLEST_BYTES = 2**20
"""Size from which a hash is kept on disk; a smaller file is hashed as fast as the cache is read."""
SETTLED_NS = 2 * 10**9
"""Age from which a file's times distinguish its versions: file systems store times in steps of up
to two seconds, so a younger file may change again while its times stay the same."""
_ATTEMPTS = 3
"""How often a file that changes while it is read is read at most."""
_BLOB = re.compile(r"[0-9a-f]{64}")


class FileStamp(msgspec.Struct, frozen=True):
    """Inode, size and times, which distinguish two versions of a file without reading them."""

    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int
    """Time of the last change of content or metadata, which no program can set."""

    @classmethod
    def of(cls, path: Path) -> FileStamp:
        """Return the present inode, size and times of a file."""
        found = path.stat()
        return cls(found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


class CachedHash(msgspec.Struct, frozen=True, kw_only=True):
    """The content of one file of the cache."""

    path: str
    stamp: FileStamp
    sha256: str
    check: str
    """Hash of the other fields, by which a damaged file is noticed."""


def cache_folder() -> Path:
    """Return `$XDG_CACHE_HOME/fttui/hashes`, or `~/.cache/fttui/hashes` without that variable.

    Raises:
        RuntimeError: the variable is not set, and the user has no home folder.
    """
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "fttui" / "hashes"


class HashCache:
    """Hashes of files, computed once per version of a file."""

    def __init__(
        self, folder: Path | None = None, now_ns: Callable[[], int] = time.time_ns
    ) -> None:
        self._folder = folder
        """Where hashes are kept; None is the user's cache folder."""
        self._now_ns = now_ns
        self._known: dict[str, tuple[FileStamp, str]] = {}

    def hash(self, path: Path) -> str:
        """Return the sha256 of a file.

        In the cache of the Hugging Face Hub, where a large file is named by its sha256, the file is
        not read. A file that changes while it is read is read again, at most three times in all.

        Raises:
            OSError: The file cannot be read.
        """
        real = path.resolve()
        if real.parent.name == "blobs" and _BLOB.fullmatch(real.name):
            return real.name
        for _ in range(_ATTEMPTS):
            stamp, started = FileStamp.of(real), self._now_ns()
            if (known := self._find(real, stamp)) is not None:
                return known
            digest = hash_file(real)
            if FileStamp.of(real) == stamp:
                break
        else:
            return digest
        if started - max(stamp.mtime_ns, stamp.ctime_ns) > SETTLED_NS:
            self._keep(real, stamp, digest)
        return digest

    def _find(self, path: Path, stamp: FileStamp) -> str | None:
        known = self._known.get(str(path))
        if known is not None and known[0] == stamp:
            return known[1]
        if stamp.size < SMALLEST_BYTES:
            return None
        with suppress(OSError, RuntimeError, ValueError, msgspec.DecodeError):
            entry = msgspec.json.decode(self._file(path).read_bytes(), type=CachedHash)
            if (entry.path, entry.stamp) == (str(path), stamp) and entry.check == _check(entry):
                self._known[str(path)] = stamp, entry.sha256
                return entry.sha256
        return None

    def _keep(self, path: Path, stamp: FileStamp, digest: str) -> None:
        """Keep a hash; without a writable cache folder only this process has it."""
        self._known[str(path)] = stamp, digest
        if stamp.size < SMALLEST_BYTES:
            return
        entry = CachedHash(path=str(path), stamp=stamp, sha256=digest, check="")
        entry = msgspec.structs.replace(entry, check=_check(entry))
        with suppress(OSError, RuntimeError, ValueError):
            file = self._file(path)
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomically(file, msgspec.json.encode(entry))

    def _file(self, path: Path) -> Path:
        folder = cache_folder() if self._folder is None else self._folder
        name = hashlib.sha256(os.fsencode(path)).hexdigest()[:32]
        return folder / f"{name}.json"


def _check(entry: CachedHash) -> str:
    unchecked = msgspec.structs.replace(entry, check="")
    return hashlib.sha256(msgspec.json.encode(unchecked)).hexdigest()[:16]
