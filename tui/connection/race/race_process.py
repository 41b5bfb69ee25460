"""The processes that run races and benchmarks for the app; they continue when it is closed."""

from __future__ import annotations

import fcntl
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO

from fttui.engine.errors import FttuiError
from fttui.engine.run.files import last_lines
from fttui.engine.run.run_dir import RunDirectory

from .race_file import PATIENCE_S, conducted_by, lock_within

RACE_LOG, BENCH_LOG = "logs/race.log", "logs/bench.log"
_LINES = 12
_LONGEST_LINE_BYTES = 4096


@dataclass(frozen=True)
class StartedBench:
    """A measurement of benchmarks, started by this app or by another one."""

    run: RunDirectory
    command: str
    """The command, as a person would type it."""
    earlier: int
    """Number of results that the run had when this app first knew of it."""
    process: subprocess.Popen[bytes] | None = None
    """Its process; None if another app has started it."""

    @property
    def runs(self) -> bool:
        """Whether it has not ended; it looks at its process or the lock of its log."""
        if self.process is not None:
            return self.process.poll() is None
        return running_bench(self.run) is not None

    @property
    def exit_code(self) -> int | None:
        """The exit code of its process; None while it runs, or if another app has started it."""
        return None if self.process is None else self.process.poll()


def start_race(
    run: RunDirectory, checkpoint: str | None, arguments: Sequence[str]
) -> subprocess.Popen[bytes]:
    """Start `fttui race` on a run in a process session of its own; its output is `logs/race.log`.

    Args:
        run: the live run.
        checkpoint: the checkpoint to start from; None for the present state.
        arguments: the arguments after the run, or `--resume` or `--cancel`.

    Raises:
        FttuiError: another process runs a race; its output would be lost.
        OSError: the log cannot be opened, or no process can be started.
    """
    if conducted_by(run) is not None:
        raise FttuiError(f"another process is running a race of {run.id}; wait until it ends")
    return _start(run, "race", checkpoint, arguments, RACE_LOG)


def bench_command(run: RunDirectory, checkpoint: str | None, arguments: Sequence[str]) -> str:
    """Return the command that measures benchmarks, as a person would type it."""
    start = f"{run.id}@{checkpoint}" if checkpoint else run.id
    return shlex.join(["fttui", "bench", start, *arguments])


def start_bench(
    run: RunDirectory, checkpoint: str | None, arguments: Sequence[str]
) -> subprocess.Popen[bytes]:
    """Start `fttui bench` on a run in a process session of its own; its output is `logs/bench.log`.

    The process holds a lock of the log, whose first line is its command.

    Args:
        run: the run, live or ended.
        checkpoint: the checkpoint to measure; None for the last one.
        arguments: the arguments after the run, such as `--tasks hellaswag`.

    Raises:
        FttuiError: an app has started a measurement that still runs; the text names it.
        OSError: the log cannot be opened, or no process can be started.
    """
    with run.open() as folder:
        folder.make_folder("logs")
        opened = folder.open_file(BENCH_LOG, os.O_RDONLY | os.O_CREAT)
    with os.fdopen(opened, "rb") as lock:
        if not lock_within(lock, fcntl.LOCK_EX, PATIENCE_S):
            raise FttuiError(already_measuring(_first_line(lock)))
        first = bench_command(run, checkpoint, arguments)
        return _start(run, "bench", checkpoint, arguments, BENCH_LOG, first, lock.fileno())


def running_bench(run: RunDirectory) -> str | None:
    """Return the command of the measurement that an app has started and that still runs.

    None without one.
    """
    try:
        with run.open() as folder:
            opened = folder.open_file(BENCH_LOG, os.O_RDONLY)
    except (FileNotFoundError, FttuiError):
        return None
    with os.fdopen(opened, "rb") as lock:
        return None if lock_within(lock, fcntl.LOCK_SH) else _first_line(lock)


def already_measuring(command: str) -> str:
    """Return that no other measurement can be started beside one, which is named."""
    return (
        f"benchmarks are being measured already: {command or 'fttui bench'}; start others when "
        "they have ended"
    )


def _first_line(log: IO[bytes]) -> str:
    return log.readline(_LONGEST_LINE_BYTES).decode(errors="replace").strip()


def _start(
    run: RunDirectory,
    command: str,
    checkpoint: str | None,
    arguments: Sequence[str],
    file: str,
    first: str = "",
    keep: int | None = None,
) -> subprocess.Popen[bytes]:
    """Start a command with a new log and its first line; it inherits the descriptor to keep."""
    with run.open() as folder:  # appended, so that an earlier process leaves no gap of zeros in it
        folder.make_folder("logs")
        opened = folder.open_file(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
    start = f"{run.path}@{checkpoint}" if checkpoint else str(run.path)
    words = [sys.executable, "-m", "fttui.tui", command, start, *arguments]
    with os.fdopen(opened, "wb") as log:
        if first:
            log.write(f"{first}\n".encode())
            log.flush()
        return subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            close_fds=True,
            pass_fds=[] if keep is None else [keep],
        )


def last_words(run: RunDirectory, file: str = RACE_LOG, count: int = _LINES) -> list[str]:
    """Return the last lines that the newest race, or the process of another log, has printed."""
    return last_lines(run.path / file, count)
