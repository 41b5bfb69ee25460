"""A folder held open by a descriptor; what is written, renamed or removed stays inside it.

A run folder may come from somebody else. A link in it, or a name with `..`, could redirect a write
or a removal to files outside. So each part of a name is opened relative to its parent folder and
without following links.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_BLOCK_BYTES = 2**20
_NO_LINK = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
"""`O_NONBLOCK` lets a named pipe be recognised, whose opening would otherwise wait for a peer."""


class OpenFolder:
    """An open folder; names are relative to it, such as `checkpoints/step-000010/MANIFEST.json`.

    The path of the folder itself may contain links, because the user chose it.

    Raises:
        OSError: the folder cannot be opened. The methods raise it for all faults, including links
            and files of another kind.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = os.open(path, _FOLDER)

    def __enter__(self) -> OpenFolder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self._descriptor)

    @property
    def descriptor(self) -> int:
        """The descriptor that holds the folder open."""
        return self._descriptor

    def open_file(self, name: str, flags: int, mode: int = 0o600) -> int:
        """Open a plain file and return its descriptor; `flags` are those of `os.open`."""
        with self._parent(name) as (parent, last):
            return open_plain(last, flags, mode, dir_fd=parent, shown=self.path / name)

    def write(self, name: str, data: bytes | Iterable[bytes]) -> None:
        """Replace a file durably; a reader sees the old or the new content, never a part of it."""
        parts = [data] if isinstance(data, bytes) else data
        with self._parent(name) as (parent, last):
            # Threads may replace the same file at once; the pid stands last, for `sweep_temporary`.
            temporary = f".{last}.{threading.get_native_id()}.{os.getpid()}.tmp"
            with suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=parent)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            descriptor = open_plain(temporary, flags, dir_fd=parent, shown=self.path / name)
            try:
                try:
                    for part in parts:
                        write_all(descriptor, part)
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
                os.replace(temporary, last, src_dir_fd=parent, dst_dir_fd=parent)
            except BaseException:
                with suppress(FileNotFoundError):
                    os.unlink(temporary, dir_fd=parent)
                raise
            os.fsync(parent)

    def remove(self, name: str) -> None:
        """Remove a file, or a link instead of its target; a missing file is not an error."""
        with suppress(FileNotFoundError), self._parent(name) as (parent, last):
            os.unlink(last, dir_fd=parent)

    def remove_tree(self, name: str) -> None:
        """Remove a folder with its contents; links in it are removed, their targets are kept."""
        with suppress(FileNotFoundError), self._parent(name) as (parent, last):
            shutil.rmtree(last, dir_fd=parent)

    def make_folder(self, name: str) -> None:
        """Create a private folder; an existing folder is kept, and a link is refused."""
        with self._parent(name) as (parent, last):
            with suppress(FileExistsError):
                os.mkdir(last, 0o700, dir_fd=parent)
            os.close(_enter(parent, last, self.path / name))

    def exists(self, name: str) -> bool:
        """Whether a file, folder or link of this name exists; a broken link counts."""
        try:
            with self._parent(name) as (parent, last):
                os.stat(last, dir_fd=parent, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    def folders(self, name: str) -> list[str]:
        """Return the sorted names of the subfolders of a folder, without links."""
        with self._folder(name) as descriptor, os.scandir(descriptor) as entries:
            return sorted(e.name for e in entries if e.is_dir(follow_symlinks=False))

    def sync_itself(self) -> None:
        """Sync this folder, which makes new and renamed files in it durable."""
        os.fsync(self._descriptor)

    def sync(self, name: str) -> None:
        """Sync a folder, which makes new and renamed files in it durable."""
        with self._folder(name) as descriptor:
            os.fsync(descriptor)

    @contextmanager
    def _folder(self, name: str) -> Iterator[int]:
        with self._parent(name) as (parent, last):
            descriptor = _enter(parent, last, self.path / name)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    @contextmanager
    def _parent(self, name: str) -> Iterator[tuple[int, str]]:
        """Yield (descriptor of the parent folder, last part of the name)."""
        *folders, last = _parts(name)
        descriptor = os.dup(self._descriptor)
        try:
            for index, part in enumerate(folders):
                inner = _enter(descriptor, part, self.path.joinpath(*folders[: index + 1]))
                os.close(descriptor)
                descriptor = inner
            yield descriptor, last
        finally:
            os.close(descriptor)


def write_all(descriptor: int, data: bytes) -> None:
    """Write data to an open file.

    Raises:
        OSError: the disk is full or failing; a part may be written.
    """
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def blocks(descriptor: int, start: int = 0, end: int | None = None) -> Iterator[bytes]:
    """Yield the content of an open file from `start` to `end`, also if it has no name any more.

    Raises:
        OSError: it cannot be read.
    """
    while end is None or start < end:
        most = _BLOCK_BYTES if end is None else min(_BLOCK_BYTES, end - start)
        if not (block := os.pread(descriptor, most, start)):
            return
        yield block
        start += len(block)


def open_plain(
    name: str | Path, flags: int, mode: int = 0o600, *, dir_fd: int | None = None, shown: Path
) -> int:
    """Open a plain file without following a link and return its descriptor.

    Args:
        name: the path; relative to `dir_fd` if that is given.
        flags: those of `os.open`.
        mode: the mode of a new file.
        dir_fd: descriptor of the folder that holds the file.
        shown: the path for errors.

    Raises:
        OSError: the file cannot be opened, or it is a link, a pipe or a device.
    """
    try:
        descriptor = os.open(name, flags | _NO_LINK, mode, dir_fd=dir_fd)
    except OSError as error:
        raise _refused(error, shown) from None
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, "it is not a plain file", str(shown))


def _enter(parent: int, name: str, shown: Path) -> int:
    try:
        return os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=parent)
    except OSError as error:
        linked = error.errno == errno.ENOTDIR and stat.S_ISLNK(
            os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
        )
        raise _refused(OSError(errno.ELOOP, "") if linked else error, shown) from None


def _refused(error: OSError, shown: Path) -> OSError:
    if error.errno == errno.ELOOP:
        return OSError(errno.ELOOP, "it is a link, and a run folder may hold none", str(shown))
    return OSError(error.errno, os.strerror(error.errno or 0), str(shown))


def _parts(name: str) -> list[str]:
    parts = name.split("/")
    if any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise OSError(errno.EINVAL, "the name leads outside its folder", name)
    return parts


def read_plain(path: Path, limit_bytes: int) -> bytes:
    """Return the content of a plain file of a run folder.

    Raises:
        OSError: it cannot be read, is a link or a pipe, or is larger than `limit_bytes`.
    """
    with os.fdopen(open_plain(path, os.O_RDONLY, shown=path), "rb") as file:
        data = file.read(limit_bytes + 1)
    if len(data) > limit_bytes:
        raise OSError(errno.EFBIG, f"it is larger than {limit_bytes:,} bytes", str(path))
    return data
