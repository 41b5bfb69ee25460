"""Durable small-file writes and process identity checks."""

from __future__ import annotations

import os
from pathlib import Path

import psutil


def write_atomically(path: Path, data: bytes) -> None:
    """Write, sync, rename, sync the folder: readers see the old or the new file, never half."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
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
    """Make renames and new files in a folder durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def last_lines(path: Path, count: int, limit_bytes: int = 64 * 1024) -> list[str]:
    """The last lines of a text file; empty when it cannot be read."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - limit_bytes))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    return [line for line in text.splitlines() if line.strip()][-count:]


def free_bytes(folder: Path) -> int | None:
    """Room for this user on the disk that holds a folder; None when nobody can tell."""
    try:
        disk = os.statvfs(folder)
    except OSError:
        return None
    return disk.f_bavail * disk.f_frsize


def process_started(pid: int) -> float | None:
    """When the process with this pid started (Unix seconds), or None when there is none."""
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        return process.create_time()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return None


def is_alive(pid: int, started: float) -> bool:
    """The same process still runs: its pid exists and was not reused."""
    now = process_started(pid)
    return now is not None and abs(now - started) < 1.0
