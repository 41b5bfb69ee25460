"""Starts the processes that follow a run: one per tracker of its configuration, and the alerts."""

from __future__ import annotations

import logging
import subprocess

from ..config.schema import RunConfig
from ..run.processes.background import start_in_background
from ..run.run_dir import RunDirectory

log = logging.getLogger(__name__)
_TRACKERS = "fttui.engine.followers.trackers"


def launch_followers(run: RunDirectory, config: RunConfig) -> None:
    """Start what follows a run; a process that cannot be started is one line in the log."""
    folder = str(run.path.absolute())
    for tracker in dict.fromkeys(config.trackers):
        arguments = [folder, "--to", tracker, "--follow", "--wait"]
        _start(run, _TRACKERS, arguments, f"tracker-{tracker}.log")


def _start(run: RunDirectory, module: str, arguments: list[str], log_name: str) -> None:
    try:
        start_in_background(run, module, arguments, log=log_name)
    except (OSError, subprocess.CalledProcessError) as error:
        log.warning("%s cannot be started: %s", module, error)
