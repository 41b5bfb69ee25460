"""The process that runs a race for the app; it continues when the app is closed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

from fttui.engine.run.files import last_lines
from fttui.engine.run.run_dir import RunDirectory

_LOG = "logs/race.log"
_LINES = 12


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
    with run.open() as folder:
        folder.make_folder("logs")
        opened = folder.open_file(_LOG, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    start = f"{run.path}@{checkpoint}" if checkpoint else str(run.path)
    command = [sys.executable, "-m", "fttui.tui", "race", start, *arguments]
    with os.fdopen(opened, "wb") as log:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            close_fds=True,
        )


def last_words(run: RunDirectory) -> list[str]:
    """Return the last lines that the newest race has printed."""
    return last_lines(run.path / _LOG, _LINES)
