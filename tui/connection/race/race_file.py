"""The file with the newest race of a run, from which an interrupted race is resumed."""

from __future__ import annotations

import fcntl
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import msgspec

from fttui.engine.errors import ConfigError, FttuiError
from fttui.engine.protocol.codec import UNDECODABLE
from fttui.engine.run.folder.open_folder import read_plain
from fttui.engine.run.run_dir import RunDirectory

from ...view_model.race.race_state import RaceState

_MOST_BYTES = 64 * 2**20
_LOCK = "race.lock"
PATIENCE_S, _LOOKS = 0.5, 10
"""Seconds and looks in which a lock may be free again, or the pid of its holder be written."""


def race_file(run: RunDirectory) -> Path:
    """Return the path of the file, whether it exists or not."""
    return run.path / "race.json"


def read_race(run: RunDirectory) -> RaceState | None:
    """Return the newest race of a run; None if there was none.

    Raises:
        FttuiError: the file is damaged.
    """
    try:
        state = msgspec.json.decode(read_plain(race_file(run), _MOST_BYTES), type=RaceState)
        state.require_sound()
    except FileNotFoundError:
        return None
    except (*UNDECODABLE, ConfigError) as error:
        raise FttuiError(
            f"{race_file(run)} is damaged ({error}); remove it to start another race"
        ) from None
    return state


def changed_at(run: RunDirectory) -> int | None:
    """Return when the file was written, in nanoseconds; None without one."""
    return _written_at(race_file(run))


def precedes_lock(run: RunDirectory) -> bool:
    """Whether the file was written before a process last took the lock of a race.

    While that process conducts a race, an ended race in such a file is an earlier one.
    """
    written, locked = changed_at(run), _written_at(run.path / _LOCK)
    return written is not None and locked is not None and written < locked


def _written_at(file: Path) -> int | None:
    try:
        return file.stat().st_mtime_ns
    except FileNotFoundError:
        return None


def store_race(run: RunDirectory, state: RaceState) -> None:
    """Store the state of a race.

    Raises:
        OSError: the file cannot be written.
    """
    run.write(race_file(run), msgspec.json.encode(state))


@contextmanager
def race_lock(run: RunDirectory) -> Iterator[None]:
    """Hold the lock of a race, so that only one process runs it.

    Raises:
        FttuiError: another process conducts a race of the run.
    """
    with run.open() as folder:
        opened = folder.open_file(_LOCK, os.O_RDWR | os.O_CREAT)
    with os.fdopen(opened, "wb") as lock:
        if not lock_within(lock, fcntl.LOCK_EX, PATIENCE_S):
            raise FttuiError(f"another process is running a race of {run.id}; wait until it ends")
        lock.truncate(0)
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            # A shell script starts its background jobs so; `interrupt_race` would have no effect.
            signal.signal(signal.SIGINT, signal.default_int_handler)
        lock.write(str(os.getpid()).encode())
        lock.flush()
        yield


def conducted_by(run: RunDirectory) -> int | None:
    """Return the pid of the process that conducts a race of the run now; None without one.

    It is 0 if the process has not reported its pid.
    """
    try:
        with run.open() as folder:
            opened = folder.open_file(_LOCK, os.O_RDWR)
    except FileNotFoundError:
        return None
    with os.fdopen(opened, "rb") as lock:
        if lock_within(lock, fcntl.LOCK_SH):
            return None
        text = b""
        for _ in range(_LOOKS):
            lock.seek(0)
            if text := lock.read(32):
                break
            time.sleep(PATIENCE_S / _LOOKS)
        return int(text) if text.isdigit() else 0


def lock_within(lock: IO[bytes], kind: int, patience_s: float = 0.0) -> bool:
    """Lock a file for as long as it is open; return False if another process holds it.

    A look whether a lock is free holds it for an instant, which whoever wants to keep it waits out
    with the patience.
    """
    last = time.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(lock, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= last:
                return False
            time.sleep(PATIENCE_S / _LOOKS)
        else:
            return True


def interrupt_race(run: RunDirectory) -> bool:
    """Let the process that conducts a race pause the run and end; return whether there is one."""
    pid = conducted_by(run)
    if not pid:
        return False
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGINT)
    return True
