"""A disk between a run and the real one: it counts operations, fails the n-th, and remembers them.

Every function of `os` that changes a file below a folder is an operation. The engine writes its run
folder through them alone; logs and caches are left out.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

KILLED = 137
_LEFT_OUT = ("logs/",)


class Mode(Enum):
    """What happens at the chosen operation."""

    EIO = "I/O error, once"
    FULL = "the disk is full from here on"
    KILL = "the process is killed"
    TORN = "the process is killed in the middle of a write"


class Kind(Enum):
    """What an operation does."""

    CREATE = "create"
    WRITE = "write"
    TRUNCATE = "truncate"
    ALLOCATE = "allocate"
    SYNC = "sync"
    SYNC_FOLDER = "sync folder"
    RENAME = "rename"
    UNLINK = "unlink"
    MKDIR = "mkdir"
    RMDIR = "rmdir"


_NEEDS_SPACE = frozenset({Kind.CREATE, Kind.WRITE, Kind.ALLOCATE, Kind.MKDIR, Kind.RENAME})


@dataclass(frozen=True)
class Operation:
    """One change of a file; names are relative to the folder."""

    kind: Kind
    name: str
    data: bytes = b""
    offset: int = 0
    """Where a write begins; the size of a truncation."""
    target: str = ""
    """The new name of a renamed file."""


@dataclass
class DiskDouble:
    """Counts the operations below a folder, and fails at one of them."""

    root: Path
    fails_at: int = -1
    """Index of the operation, from 0; -1 for none."""
    mode: Mode = Mode.EIO
    record: bool = False
    log: list[Operation] = field(default_factory=list)
    count: int = 0

    def _name(self, path: Any, dir_fd: int | None = None) -> str | None:
        """The name below the folder; None for what is elsewhere or left out."""
        if isinstance(path, int):
            place = os.readlink(f"/proc/self/fd/{path}")
        else:
            base = os.readlink(f"/proc/self/fd/{dir_fd}") if dir_fd is not None else os.getcwd()
            place = os.path.join(base, os.fspath(path))
        prefix = f"{self.root}/"
        if place == str(self.root):
            return ""
        if not place.startswith(prefix):
            return None
        name = place.removeprefix(prefix)
        below = name.partition("/")[2]
        return None if below.startswith(_LEFT_OUT) else name

    def _before(self, operation: Operation) -> None:
        index, self.count = self.count, self.count + 1
        if self.record:
            self.log.append(operation)
        if self.fails_at < 0 or index < self.fails_at:
            return
        if self.mode is Mode.FULL and operation.kind in _NEEDS_SPACE:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), operation.name)
        if index > self.fails_at or self.mode is Mode.FULL:
            return
        if self.mode is Mode.EIO:
            raise OSError(errno.EIO, os.strerror(errno.EIO), operation.name)
        os._exit(KILLED)

    @contextmanager
    def inserted(self) -> Iterator[DiskDouble]:
        """Stand between this process and the disk."""
        before = {name: getattr(os, name) for name in _WRAPPED}
        for name, make in _WRAPPED.items():
            setattr(os, name, make(self, before[name]))
        try:
            yield self
        finally:
            for name, function in before.items():
                setattr(os, name, function)


Wrapper = Callable[[DiskDouble, Callable[..., Any]], Callable[..., Any]]


def _open(disk: DiskDouble, real: Callable[..., Any]) -> Callable[..., Any]:
    def opened(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if flags & os.O_CREAT and (name := disk._name(path, dir_fd)) is not None:
            try:
                os.stat(path, dir_fd=dir_fd, follow_symlinks=False)
            except FileNotFoundError:
                disk._before(Operation(Kind.CREATE, name))
        descriptor: int = real(path, flags, mode, dir_fd=dir_fd)
        return descriptor

    return opened


def _write(disk: DiskDouble, real: Callable[..., Any]) -> Callable[..., Any]:
    def write(descriptor: int, data: Any, *offset: int) -> int:
        name = disk._name(descriptor)
        if name is not None:
            at = offset[0] if offset else os.lseek(descriptor, 0, os.SEEK_CUR)
            torn = disk.mode is Mode.TORN and disk.count == disk.fails_at
            if torn:
                real(descriptor, bytes(data)[: len(data) // 2], *offset)
            disk._before(Operation(Kind.WRITE, name, bytes(data), at))
        written: int = real(descriptor, data, *offset)
        return written

    return write


def _truncate(disk: DiskDouble, real: Callable[..., Any]) -> Callable[..., Any]:
    def truncate(descriptor: int, size: int) -> None:
        if (name := disk._name(descriptor)) is not None:
            disk._before(Operation(Kind.TRUNCATE, name, offset=size))
        real(descriptor, size)

    return truncate


def _allocate(disk: DiskDouble, real: Callable[..., Any]) -> Callable[..., Any]:
    def allocate(descriptor: int, offset: int, size: int) -> None:
        if (name := disk._name(descriptor)) is not None:
            disk._before(Operation(Kind.ALLOCATE, name, offset=offset + size))
        real(descriptor, offset, size)

    return allocate


def _sync(disk: DiskDouble, real: Callable[..., Any]) -> Callable[..., Any]:
    def sync(descriptor: int) -> None:
        if (name := disk._name(descriptor)) is not None:
            folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
            disk._before(Operation(Kind.SYNC_FOLDER if folder else Kind.SYNC, name))
            return  # the power of this machine is not cut, and a real sync takes long
        real(descriptor)

    return sync


def _rename(disk: DiskDouble, real: Callable[..., Any]) -> Callable[..., Any]:
    def rename(
        source: Any, target: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None
    ) -> None:
        name, new = disk._name(source, src_dir_fd), disk._name(target, dst_dir_fd)
        if name is not None and new is not None:
            disk._before(Operation(Kind.RENAME, name, target=new))
        real(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)

    return rename


def _named(kind: Kind) -> Wrapper:
    def wrap(disk: DiskDouble, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any, *rest: Any, dir_fd: int | None = None) -> None:
            if (name := disk._name(path, dir_fd)) is not None:
                disk._before(Operation(kind, name))
            real(path, *rest, dir_fd=dir_fd)

        return call

    return wrap


_WRAPPED: dict[str, Wrapper] = {
    "open": _open,
    "write": _write,
    "pwrite": _write,
    "ftruncate": _truncate,
    "posix_fallocate": _allocate,
    "fsync": _sync,
    "fdatasync": _sync,
    "rename": _rename,
    "replace": _rename,
    "unlink": _named(Kind.UNLINK),
    "remove": _named(Kind.UNLINK),
    "mkdir": _named(Kind.MKDIR),
    "rmdir": _named(Kind.RMDIR),
}
