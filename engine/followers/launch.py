"""Starts the processes that follow a run: one per tracker, that of benchmarks, and the alerts."""

from __future__ import annotations

import logging
import subprocess
from importlib.util import find_spec
from typing import get_args

from ..config.schema import RunConfig
from ..config.sections.outward import AlertKind
from ..run.processes.background import start_in_background
from ..run.run_dir import RunDirectory
from .alerts.addresses import has_addresses
from .alerts.sender import INSTALL

log = logging.getLogger(__name__)
_TRACKERS = "fttui.engine.followers.trackers"
_ALERTS = "fttui.engine.followers.alerts"
_BENCHMARKS = "fttui.engine.followers.benchmarks"
_RESTARTING = "fttui.engine.followers.restarting"


def launch_followers(run: RunDirectory, config: RunConfig) -> None:
    """Start the processes that deliver a run, measure its benchmarks and send its messages.

    Each runs under a process that starts it again when it is killed. If one cannot be started, the
    log has a warning.
    """
    folder = str(run.path.absolute())
    for tracker in dict.fromkeys(config.trackers):
        arguments = [folder, "--to", tracker, "--follow", "--wait"]
        _start(run, tracker, [_TRACKERS, *arguments], f"tracker-{tracker}.log")
    if config.eval.benchmarks.tasks:
        _start(run, "benchmarks", [_BENCHMARKS, folder], "benchmarks.log")
    if not has_addresses() or set(config.alerts.mute) >= set(get_args(AlertKind)):
        return
    if find_spec("apprise") is None:
        log.warning("no messages are sent, because apprise is missing: %s", INSTALL)
        return
    _start(run, "alerts", [_ALERTS, folder], "alerts.log")


def _start(run: RunDirectory, name: str, command: list[str], log_name: str) -> None:
    try:
        start_in_background(run, _RESTARTING, [name, *command], log=log_name)
    except (OSError, subprocess.CalledProcessError) as error:
        log.warning("the process for %s cannot be started: %s", name, error)
