"""Starting the hub as a process of its own, from the engine or from a viewer."""

from __future__ import annotations

import subprocess
import sys
import time

from ..errors import FttuiError
from ..run.files import last_lines
from ..run.process_marks import Endpoint, read_endpoint
from ..run.run_dir import RunDirectory

_POLL_S = 0.02
_RELAUNCH_S = 2.0


def launch_hub(run: RunDirectory) -> None:
    """Start a hub in a session of its own; it leaves at once when one serves the run already.

    A shell puts it in the background, so that it is no child of the caller: nobody has to wait
    for it, and a caller that never does leaves no zombie.
    """
    command = [sys.executable, "-P", "-m", "fttui.engine.hub", str(run.path.absolute())]
    run.logs.mkdir(mode=0o700, exist_ok=True)
    with open(run.logs / "hub.log", "ab") as log:
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
    """The endpoint of the run's living hub, which is started when there is none.

    Raises:
        FttuiError: it does not come up in time.
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
    tail = "\n".join(last_lines(run.logs / "hub.log", 5)) or "(its log is empty)"
    raise FttuiError(f"the hub of {run.id} did not come up within {timeout_s:g} s:\n{tail}")
