"""The `fttui` command as a subprocess, and what it left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from fttui.engine.run.journal import FrameReader
from fttui.engine.run.run_dir import RunDirectory
from fttui.tui.cli.ls import event_line

from .forks import run_forked

FTTUI = [sys.executable, "-m", "fttui.tui"]


def fttui(*arguments: str, runs: Path, timeout_s: float = 180) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    environ = {**os.environ, "FTTUI_RUNS": str(runs)}
    return run_forked("fttui.tui", arguments, environ=environ, timeout_s=timeout_s)


def start(*arguments: str, runs: Path) -> subprocess.Popen[str]:
    """Run the command in the background."""
    return subprocess.Popen(
        [*FTTUI, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "FTTUI_RUNS": str(runs)},
    )


def events(run: str, runs: Path) -> list[dict[str, Any]]:
    """The journal as `fttui events` prints it, without a process for every look at it."""
    return [event_line(payload) for payload in FrameReader(RunDirectory(runs / run).journal)]


def only_run(runs: Path) -> str:
    """The name of the one run there is."""
    (found,) = [path.parent.name for path in runs.glob("*/run.json")]
    return found
