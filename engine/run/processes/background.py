"""Starts a module of fttui as a process of its own, which outlives the process that starts it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

from ..run_dir import RunDirectory


def start_in_background(
    run: RunDirectory, module: str, arguments: Sequence[str], *, log: str, cwd: str | None = None
) -> None:
    """Start `python -m MODULE ARGUMENTS` in a session of its own, without standard input.

    A shell starts it in the background, so it is not a child of the caller and leaves no zombie
    process if the caller never waits for it.

    Args:
        run: the run that it works on.
        module: a module with a `main`.
        arguments: its arguments.
        log: name of the file in the run's folder `logs` to which its output is appended.
        cwd: its current folder; None keeps that of the caller.

    Raises:
        OSError: the log cannot be opened, or the shell cannot be started.
        subprocess.CalledProcessError: the shell could not start it.
    """
    command = [sys.executable, "-P", "-m", module, *arguments]
    with run.open() as folder:
        folder.make_folder("logs")
        opened = folder.open_file(f"logs/{log}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with os.fdopen(opened, "ab") as output:
        subprocess.run(
            ["/bin/sh", "-c", '"$@" &', "sh", *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            close_fds=True,
            cwd=cwd,
            check=True,
        )
