"""`sync`: deliver the records of a run to a tracker, now, later or again."""

from __future__ import annotations

import argparse
import sys
from typing import get_args

from fttui.engine.config.schema import Tracker
from fttui.engine.run.folder.links import require_plain

from ..options import Commands, add_run, chosen_run
from ..preflight.extras import require_tracker
from .relay import relay_lines

_DESCRIPTION = """\
Deliver to a tracker everything about a run that it does not have yet. The run may be live or ended,
and may have been recorded by fttui.watch. Each timeline becomes a run in the tracker. The run
folder records what was delivered, so a second call delivers nothing twice. The default of each
setting is in the section `tracking` of the run's configuration.
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
    sync.add_argument("--follow", action="store_true", help="keep delivering until the engine ends")
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
