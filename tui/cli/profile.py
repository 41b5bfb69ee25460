"""`profile`: where the time of a step goes, measured on a run that is thrown away."""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import msgspec

from fttui.engine.errors import TrainingFailed
from fttui.engine.protocol.command_args import CommandError, count
from fttui.engine.protocol.events import StepsProfiled

from .options import Commands, say
from .probe import Probe, add_probe_options, probe

_SPARE_STEPS = 8
"""More than the engine warms up with, so that the schedule does not end before the profile."""


def add_commands(commands: Commands) -> None:
    """Add the subcommand."""
    profile = commands.add_parser("profile", help="see where the time of a step goes")
    add_probe_options(profile)
    profile.add_argument("--steps", metavar="N", type=_steps, default=3, help="default 3")
    profile.add_argument(
        "--traces",
        metavar="D",
        type=Path,
        default=Path("profiles"),
        help="folder for the traces (default: ./profiles)",
    )
    profile.set_defaults(handler=_profile)


def _steps(text: str) -> int:
    try:
        return count(text, "N")
    except CommandError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _profile(options: argparse.Namespace) -> int:
    overrides = [f"train.steps={options.steps + _SPARE_STEPS}"]
    with probe(options, overrides, ["--profile", str(options.steps)], StepsProfiled) as made:
        if made.exit_code:
            return made.exit_code
        if made.found is None:
            raise TrainingFailed("no step was profiled: the run was stopped; start it again")
        kept = _keep_traces(made, options.traces)
        if options.json:
            shown = {**msgspec.to_builtins(made.found), "mfu": made.found.mfu}
            say(json.dumps({**shown, "trace": kept[0] if kept else ""}))
        elif kept:
            say(f"for ui.perfetto.dev or chrome://tracing: {', '.join(kept)}")
    return 0


def _keep_traces(made: Probe[StepsProfiled], folder: Path) -> list[str]:
    """Those of all ranks, rank 0 first, under the run's name."""
    kept = []
    for trace in sorted(made.run.profiles.glob("*.json.gz")):
        folder.mkdir(parents=True, exist_ok=True)
        kept.append(str(shutil.copy(trace, folder / f"{made.run.id}-{trace.name}")))
    return kept
