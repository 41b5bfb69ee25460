"""File and process functions: durable writes, hashes, last lines, free space, process start."""

from __future__ import annotations

import hashlib
import os
import threading
from pathlib import Path

import psutil

from .folder.open_folder import open_plain

_BLOCK_BYTES = 4 * 2**20
"""Bytes that are hashed at once, without Python's global lock. With small blocks, a hashing thread
would wait for that lock more often than it hashes while another thread computes."""


def write_atomically(path: Path, data: bytes) -> None:
    """Replace a file durably; a reader sees the old or the new content, never a part of it.

    Raises:
        OSError: it cannot be written; the old file is kept.
    """
    # Threads may replace the same file at once; the pid stands last, for `sweep_temporary`.
    thread = threading.get_native_id()
    temporary = path.with_name(f".{path.name}.{thread}.{os.getpid()}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Sync a folder, which makes new and renamed files in it durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def hash_file(path: Path) -> str:
    """Return the sha256 hash of a file in hexadecimal."""
    digest = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        block = memoryview(bytearray(min(size + 1, _BLOCK_BYTES)))
        while count := file.readinto(block):
            digest.update(block[:count])
    return digest.hexdigest()


def last_lines(path: Path, count: int, limit_bytes: int = 64 * 1024) -> list[str]:
    """Return the last `count` non-empty lines of a text file; an empty list if it cannot be read.

    Only the last `limit_bytes` of the file are read.
    """
    try:
        with os.fdopen(open_plain(path, os.O_RDONLY, shown=path), "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - limit_bytes))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    return [line for line in text.splitlines() if line.strip()][-count:]


def free_bytes(folder: Path) -> int | None:
    """Return the disk space free to this user where a folder is; None if it is not known.

    Root may also use what the file system reserves for it.
    """
    try:
        disk = os.statvfs(folder)
    except OSError:
        return None
    if disk.f_blocks == 0:
        return None  # some network file systems report no sizes
    blocks = disk.f_bfree if os.geteuid() == 0 else disk.f_bavail
    return blocks * disk.f_frsize


def process_started(pid: int) -> float | None:
    """Return the start time of a process in Unix seconds; None if it does not run (any more)."""
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        return process.create_time()
    except (psutil.Error, ValueError, OverflowError):
        return None  # there is none, or the number cannot be that of a process


def is_alive(pid: int, started: float) -> bool:
    """Whether the process that started at that time still runs; its pid may have been reused."""
    now = process_started(pid)
    return now is not None and abs(now - started) < 1.0
