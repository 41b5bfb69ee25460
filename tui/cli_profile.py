"""`profile`: where the time of a step goes, measured on a run that is thrown away."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import msgspec

from fttui.engine.errors import TrainingFailed
from fttui.engine.protocol.codec import decode_record
from fttui.engine.protocol.events import StepsProfiled
from fttui.engine.protocol.words import CommandError, count
from fttui.engine.run.journal import FrameReader
from fttui.engine.run.layout import RunDirectory, runs_root

from .cli_options import Commands, add_runs_dir, say

_SPARE_STEPS = 8
"""More than the engine warms up with, so that the schedule does not end before the profile."""


def add_commands(commands: Commands) -> None:
    """Add the subcommand."""
    profile = commands.add_parser("profile", help="see where the time of a step goes")
    profile.add_argument("config", metavar="CONFIG", type=Path, help="a YAML file")
    profile.add_argument(
        "--set", dest="overrides", action="append", default=[], metavar="K=V",
        help="override a key of the configuration",
    )  # fmt: skip
    profile.add_argument("--steps", metavar="N", type=_steps, default=3, help="default 3")
    profile.add_argument("--json", action="store_true", help="the figures for a program")
    add_runs_dir(profile)
    profile.set_defaults(handler=_profile)


def _steps(text: str) -> int:
    try:
        return count(text, "N")
    except CommandError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _profile(options: argparse.Namespace) -> int:
    from .cli_follow import follow
    from .cli_run import load_checked
    from .client.spawn import new_run, start_engine

    steps = options.steps
    overrides = [*options.overrides, *_only_steps(steps + _SPARE_STEPS)]
    loaded = load_checked(options.config, overrides)
    run = new_run(runs_root(options.runs_dir), options.config, loaded, overrides)
    engine = start_engine(run, loaded.config.train.devices, options=["--profile", str(steps)])
    quiet = (lambda text: None) if options.json else say
    code = follow(engine, quiet)
    if code:
        return code
    found = newest_profile(run)
    if found is None:
        raise TrainingFailed(f"no step was profiled; the engine's log is {run.engine_log}")
    if options.json:
        say(json.dumps({**msgspec.to_builtins(found), "mfu": found.mfu}))
    elif found.trace:
        say(f"trace for ui.perfetto.dev or chrome://tracing: {run.profiles / found.trace}")
    return 0


def _only_steps(steps: int) -> list[str]:
    """A run without evaluations and checkpoints."""
    return [
        f"train.steps={steps}",
        "train.epochs=null",
        "train.early_stop=null",
        "eval.every=0",
        "eval.at_start=false",
        "checkpoint.every=0",
        "checkpoint.at_start=false",
        "checkpoint.best=null",
    ]


def newest_profile(run: RunDirectory) -> StepsProfiled | None:
    """The last profile in a run's journal."""
    found = None
    for payload in FrameReader(run.journal):
        record = decode_record(payload)
        if record is not None and isinstance(record.event, StepsProfiled):
            found = record.event
    return found
