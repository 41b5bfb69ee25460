"""The processes that run races and benchmarks for the app; they continue when it is closed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from fttui.engine.run.files import last_lines
from fttui.engine.run.run_dir import RunDirectory

RACE_LOG, BENCH_LOG = "logs/race.log", "logs/bench.log"
_LINES = 12


@dataclass(frozen=True)
class StartedBench:
    """A process that measures benchmarks."""

    process: subprocess.Popen[bytes]
    arguments: Sequence[str]
    """Its arguments after the run."""
    earlier: int
    """Number of results that the run had before."""

    @property
    def runs(self) -> bool:
        """Whether it has not ended."""
        return self.process.poll() is None


def start_race(
    run: RunDirectory, checkpoint: str | None, arguments: Sequence[str]
) -> subprocess.Popen[bytes]:
    """Start `fttui race` on a run in a process session of its own; its output is `logs/race.log`.

    Args:
        run: the live run.
        checkpoint: the checkpoint to start from; None for the present state.
        arguments: the arguments after the run, or `--resume` or `--cancel`.

    Raises:
        OSError: the log cannot be opened, or no process can be started.
    """
    return _start(run, "race", checkpoint, arguments, RACE_LOG)


def start_bench(
    run: RunDirectory, checkpoint: str | None, arguments: Sequence[str]
) -> subprocess.Popen[bytes]:
    """Start `fttui bench` on a run in a process session of its own; its output is `logs/bench.log`.

    Args:
        run: the run, live or ended.
        checkpoint: the checkpoint to measure; None for the last one.
        arguments: the arguments after the run, such as `--tasks hellaswag`.

    Raises:
        OSError: the log cannot be opened, or no process can be started.
    """
    return _start(run, "bench", checkpoint, arguments, BENCH_LOG)


def _start(
    run: RunDirectory, command: str, checkpoint: str | None, arguments: Sequence[str], file: str
) -> subprocess.Popen[bytes]:
    with run.open() as folder:  # appended, so that an earlier process leaves no gap of zeros in it
        folder.make_folder("logs")
        opened = folder.open_file(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
    start = f"{run.path}@{checkpoint}" if checkpoint else str(run.path)
    words = [sys.executable, "-m", "fttui.tui", command, start, *arguments]
    with os.fdopen(opened, "wb") as log:
        return subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            close_fds=True,
        )


def last_words(run: RunDirectory, file: str = RACE_LOG) -> list[str]:
    """Return the last lines that the newest race, or the process of another log, has printed."""
    return last_lines(run.path / file, _LINES)
