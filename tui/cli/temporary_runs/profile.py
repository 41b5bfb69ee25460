"""`profile`: measure where the time of an optimizer step goes, on a temporary run."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import msgspec

from fttui.engine.errors import TrainingFailed
from fttui.engine.protocol.command_args import CommandError, count
from fttui.engine.protocol.events import StepsProfiled

from ..options import Commands, say, say_json
from ..preflight.training_packages import require_training_packages
from .probe import Probe, add_probe_options, probe

_SPARE_STEPS = 8
"""Extra steps, more than the profiler warms up for, so that the run outlasts the profile."""


def add_commands(commands: Commands) -> None:
    """Register the subcommand `profile` of `fttui`."""
    profile = commands.add_parser("profile", help="measure where the time of a step goes")
    add_probe_options(profile)
    steps = "optimizer steps to profile (default 3)"
    profile.add_argument("--steps", metavar="N", type=_steps, default=3, help=steps)
    profile.add_argument(
        "--traces",
        metavar="D",
        type=Path,
        default=Path("profiles"),
        help="folder for the trace files (default: ./profiles)",
    )
    profile.set_defaults(handler=_profile)


def _steps(text: str) -> int:
    try:
        return count(text, "N")
    except CommandError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _profile(options: argparse.Namespace) -> int:
    require_training_packages("fttui profile")
    overrides = [f"train.steps={options.steps + _SPARE_STEPS}"]
    with probe(options, overrides, ["--profile", str(options.steps)], StepsProfiled) as made:
        if made.exit_code:
            return made.exit_code
        if made.found is None:
            raise TrainingFailed(
                "the run was stopped before the profile was made; run fttui profile again"
            )
        kept = _keep_traces(made, options.traces)
        if options.json:
            shown = {**msgspec.to_builtins(made.found), "mfu": made.found.mfu}
            say_json({**shown, "trace": kept[0] if kept else ""})
        elif kept:
            say(f"open the trace in ui.perfetto.dev or chrome://tracing: {', '.join(kept)}")
    return 0


def _keep_traces(made: Probe[StepsProfiled], folder: Path) -> list[str]:
    """Copy the traces of all ranks, rank 0 first, into a folder; return their paths."""
    kept = []
    for trace in sorted(made.run.profiles.glob("*.json.gz")):
        folder.mkdir(parents=True, exist_ok=True)
        kept.append(str(shutil.copy(trace, folder / f"{made.run.id}-{trace.name}")))
    return kept
