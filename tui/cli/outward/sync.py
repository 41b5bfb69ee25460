"""`sync`: deliver the records of a run to a tracker, now, later or again."""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, get_args

from fttui.engine.config.schema import Tracker
from fttui.engine.errors import FttuiError
from fttui.engine.run.folder.links import require_plain

from ..options import Commands, add_run, chosen_run, say
from ..preflight.extras import require_tracker

if TYPE_CHECKING:
    from collections.abc import Iterator

_DESCRIPTION = """\
Deliver what a tracker does not hold yet of a run, live or ended, also of one that fttui.watch has
recorded. Each timeline becomes a run in the tracker. What is delivered is remembered in the run
folder, so that a second call delivers nothing twice. Settings that are not given are those of the
section `tracking` of the run's configuration.
"""


def add_commands(commands: Commands) -> None:
    """Register the subcommand `sync` of `fttui`."""
    sync = commands.add_parser(
        "sync",
        help="deliver a run to a tracker, such as W&B, TensorBoard or MLflow",
        description=_DESCRIPTION,
    )
    add_run(sync)
    sync.add_argument("--to", required=True, choices=get_args(Tracker), help="the tracker")
    sync.add_argument("--follow", action="store_true", help="go on until the engine ends")
    sync.add_argument(
        "--again",
        action="store_true",
        help="deliver everything once more, to new runs of the tracker",
    )
    sync.add_argument("--project", metavar="P", help="project; mlflow: experiment")
    sync.add_argument("--entity", metavar="E", help="wandb: team or user; swanlab: workspace")
    sync.add_argument(
        "--uri",
        metavar="U",
        help="mlflow: tracking server or local store (default: $MLFLOW_TRACKING_URI)",
    )
    sync.add_argument("--folder", metavar="D", help="tensorboard: folder for the event files")
    sync.set_defaults(handler=_sync)


def _sync(options: argparse.Namespace) -> int:
    run = chosen_run(options, live=False)
    require_tracker(options.to, "fttui sync")
    require_plain(run.path)
    command = [sys.executable, "-P", "-m", "fttui.engine.followers.trackers", str(run.path)]
    command += ["--to", options.to]
    command += [f"--{name}" for name in ("follow", "again") if getattr(options, name)]
    for name in ("project", "entity", "uri", "folder"):
        if (value := getattr(options, name)) is not None:
            command.append(f"--{name}={value}")
    return relay_lines(command)


def relay_lines(command: Sequence[str]) -> int:
    """Run a command without a terminal, print its lines, and return its exit code.

    Ctrl+C asks it to end, which it does once what it has begun is done.

    Raises:
        FttuiError: the output of the command cannot be read.
    """
    with (
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        ) as process,
        _passed_on(process),
    ):
        if process.stdout is None:
            raise FttuiError("the output of the process cannot be read")
        for line in process.stdout:
            say(line.removesuffix("\n"))
    return process.returncode


@contextmanager
def _passed_on(process: subprocess.Popen[str]) -> Iterator[None]:
    """Pass the stop signals of this process on to another one."""

    def ask(_number: int, _frame: FrameType | None) -> None:
        process.terminate()

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
