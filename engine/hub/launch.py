"""Starts the hub as a process of its own; used by the engine and by viewers."""

from __future__ import annotations

import time

from ..errors import FttuiError
from ..run.files import last_lines
from ..run.processes.background import start_in_background
from ..run.processes.marks import Endpoint, read_endpoint
from ..run.run_dir import RunDirectory

POLL_S = 0.02
"""Seconds between two checks for a hub that is being started."""
_RELAUNCH_S = 2.0


def launch_hub(run: RunDirectory) -> None:
    """Start a hub in a session of its own; it exits at once if the run already has a hub.

    Raises:
        OSError: its log cannot be opened, or the shell cannot be started.
    """
    start_in_background(run, "fttui.engine.hub", [str(run.path.absolute())], log="hub.log", cwd="/")


class HubStart:
    """Starts the hub of a run if none is alive; the caller waits between the calls of `look`."""

    def __init__(self, run: RunDirectory, timeout_s: float) -> None:
        self._run = run
        self._timeout_s = timeout_s
        self._deadline = time.monotonic() + timeout_s
        self._launch_at = 0.0

    def look(self) -> Endpoint | None:
        """Return the endpoint of the live hub; None if there is none yet.

        A missing hub is started, at most once every 2 s.

        Raises:
            FttuiError: the hub did not start in time; the text ends with the last lines of its log.
            OSError: no process can be started, or the run folder is gone.
        """
        endpoint = read_endpoint(self._run)
        if endpoint is not None and endpoint.alive:
            return endpoint
        now = time.monotonic()
        if now > self._deadline:
            raise FttuiError(self._why())
        if now >= self._launch_at:
            launch_hub(self._run)
            self._launch_at = now + _RELAUNCH_S
        return None

    def _why(self) -> str:
        log = self._run.logs / "hub.log"
        tail = "\n".join(last_lines(log, 5)) or "(the log is empty)"
        return (
            f"the hub of {self._run.id} did not start within {self._timeout_s:g} s; the end of "
            f"{log}:\n{tail}"
        )


def ensure_hub(run: RunDirectory, timeout_s: float) -> Endpoint:
    """Return the endpoint of the run's hub, and start a hub if none is alive.

    Raises:
        FttuiError: the hub did not start in time; the text ends with the last lines of its log.
        OSError: no process can be started, or the run folder is gone.
    """
    start = HubStart(run, timeout_s)
    while (endpoint := start.look()) is None:
        time.sleep(POLL_S)
    return endpoint
