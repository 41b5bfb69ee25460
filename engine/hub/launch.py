"""Starts the hub as a process of its own; used by the engine and by viewers."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from ..errors import FttuiError
from ..run.files import last_lines
from ..run.processes.marks import Endpoint, read_endpoint
from ..run.run_dir import RunDirectory

_POLL_S = 0.02
_RELAUNCH_S = 2.0


def launch_hub(run: RunDirectory) -> None:
    """Start a hub in a session of its own; it exits at once if the run already has a hub.

    A shell starts it in the background, so it is not a child of the caller and leaves no zombie
    process if the caller never waits for it.
    """
    command = [sys.executable, "-P", "-m", "fttui.engine.hub", str(run.path.absolute())]
    with run.open() as folder:
        folder.make_folder("logs")
        opened = folder.open_file("logs/hub.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with os.fdopen(opened, "ab") as log:
        subprocess.run(
            ["/bin/sh", "-c", '"$@" &', "sh", *command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            close_fds=True,
            cwd="/",
            check=True,
        )


def ensure_hub(run: RunDirectory, timeout_s: float) -> Endpoint:
    """Return the endpoint of the run's hub, and start a hub if none is alive.

    Raises:
        FttuiError: the hub did not start in time; the text ends with the last lines of its log.
    """
    deadline = time.monotonic() + timeout_s
    launch_at = 0.0
    while True:
        endpoint = read_endpoint(run)
        if endpoint is not None and endpoint.alive:
            return endpoint
        now = time.monotonic()
        if now > deadline:
            break
        if now >= launch_at:
            launch_hub(run)
            launch_at = now + _RELAUNCH_S
        time.sleep(_POLL_S)
    tail = "\n".join(last_lines(run.logs / "hub.log", 5)) or "(the log is empty)"
    log = run.logs / "hub.log"
    raise FttuiError(
        f"the hub of {run.id} did not start within {timeout_s:g} s; the end of {log}:\n{tail}"
    )
