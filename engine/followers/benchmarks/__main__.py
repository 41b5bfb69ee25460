"""The process that measures benchmarks: `python -m fttui.engine.followers.benchmarks RUN`.

It follows the journal and starts a process for each checkpoint that is due, one after the other. It
ends when the engine has ended and no checkpoint waits.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ...config.sections.benchmarks import BenchmarksConfig
from ...errors import CheckpointError, ConfigError, DataError, FttuiError
from ...run.checkpoint_store import CheckpointStore
from ...run.records.record_feed import RecordFeed, engine_works
from ...run.run_dir import RunDirectory
from ..quiet import Termination
from ..run_config import benchmarks_of, config_of
from .waiting import WaitingCheckpoints

_LOCK = "benchmarks.lock"
_LOOK_EVERY_S = 1.0
_HOPELESS = (ConfigError.exit_code, DataError.exit_code)
"""Exit codes of errors in the tasks, which every further checkpoint would repeat."""
_OF_RANKS = ("RANK", "LOCAL_", "GROUP_", "ROLE_", "WORLD_SIZE", "MASTER_", "TORCHELASTIC_")
"""Beginnings of the variables that make a process a rank of the training."""


def main(arguments: list[str]) -> int:
    """Measure the checkpoints of a run until it has ended; return the exit code."""
    terminated = Termination()
    try:
        CheckpointMeasurements(RunDirectory(Path(arguments[0]).absolute()), terminated, _say).work()
    except FttuiError as error:
        _say(str(error))
        return error.exit_code
    return 0


def _say(text: str) -> None:
    sys.stdout.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")
    sys.stdout.flush()


class CheckpointMeasurements:
    """Measures the checkpoints of one run."""

    def __init__(
        self, run: RunDirectory, terminated: Termination, say: Callable[[str], None]
    ) -> None:
        """Read the configuration of the run.

        Raises:
            FttuiError: it cannot be read, or another process measures the run.
        """
        self._run, self._terminated, self._say = run, terminated, say
        self._settings: BenchmarksConfig = benchmarks_of(config_of(run))
        self._store = CheckpointStore(run)
        self._feed = RecordFeed(run)
        own = self._settings
        self._waiting = WaitingCheckpoints(own.every, own.tasks, self._number_of, own.decides_by)
        self._take_lock()

    def _take_lock(self) -> None:
        self._lock = self._run.open().open_file(_LOCK, os.O_RDWR | os.O_CREAT)
        while True:
            try:
                return fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                if not engine_works(self._run) or self._terminated.wait(_LOOK_EVERY_S):
                    raise FttuiError("another process measures this run") from None

    def _number_of(self, name: str) -> int | None:
        try:
            return self._store.find(name).number
        except CheckpointError:
            return None

    def work(self) -> None:
        """Measure until the engine has ended and nothing waits, a task fails, or until SIGTERM."""
        while not self._terminated.asked:
            works = engine_works(self._run)
            while records := self._feed.read():
                for record in records:
                    self._waiting.add(record)
            if name := self._waiting.next:
                code = self._measure(name)
                self._waiting.close(name)
                if code in _HOPELESS:
                    self._say("no further checkpoint is measured: the error would be the same")
                    return
            elif not works or self._terminated.wait(_LOOK_EVERY_S):
                return

    def _measure(self, name: str) -> int:
        """Measure one checkpoint in a process; return its exit code, negative for a signal."""
        self._say(f"measuring {name}")
        process = subprocess.Popen(
            command_of(self._run, name, self._settings, base=not self._waiting.knows_base),
            stdin=subprocess.DEVNULL,
            env={n: v for n, v in os.environ.items() if not n.startswith(_OF_RANKS)}
            | {"TQDM_DISABLE": "1"},
        )
        while True:
            with suppress(subprocess.TimeoutExpired):
                return process.wait(_LOOK_EVERY_S)
            if self._terminated.asked:
                process.terminate()
                return process.wait()


def command_of(
    run: RunDirectory, name: str, settings: BenchmarksConfig, *, base: bool
) -> list[str]:
    """Return the command line of the process that measures a checkpoint.

    Args:
        run: the run.
        name: the checkpoint.
        settings: what to measure, and how.
        base: whether the base model has not been measured yet.
    """
    command = [sys.executable, "-W", "ignore", "-P", "-m", "fttui.engine.bench", str(run.path)]
    command += [name, "--tasks", ",".join(settings.tasks), "--device", settings.device]
    options = {
        "include-path": settings.include,
        "limit": settings.limit,
        "fewshot": settings.fewshot,
        "batch": settings.batch,
    }
    for option, value in options.items():
        command += [] if value is None else [f"--{option}", str(value)]
    command += ["--chat-template"] * settings.chat_template
    return [*command, *["--base"] * (settings.base and base), "--record-errors"]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
