"""`recipe`: the configuration of a run with its interventions, to repeat it unattended."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from fttui.engine.errors import ConfigError
from fttui.engine.protocol.events import Record, RunStarted
from fttui.engine.protocol.settings import RunSettings
from fttui.engine.run.records.record_feed import read_whole
from fttui.engine.run.run_dir import RunDirectory, runs_root
from fttui.engine.run.run_index import find_run

from ...text.format import plural
from ...view_model.history.surviving import SurvivingTimeline, surviving_timeline
from ..options import Commands, add_run, say, warn

if TYPE_CHECKING:
    from fttui.engine.config.schema import RunConfig


def add_commands(commands: Commands) -> None:
    """Register the subcommand `recipe` of `fttui`."""
    parser = commands.add_parser(
        "recipe", help="write a run's configuration with its interventions, to repeat the run"
    )
    add_run(parser)
    parser.add_argument(
        "-o", "--out", metavar="FILE", type=Path, help="new file to write; default: print it"
    )
    parser.set_defaults(handler=_recipe)


def _recipe(options: argparse.Namespace) -> int:
    from ..preflight.import_config import write_new

    run = find_run(runs_root(options.runs_dir), options.run)
    config = readable_config(run)
    records, not_read = read_whole(run)
    timeline = surviving_timeline(records, fresh_settings(config))
    text = recipe_text(run, config, records, timeline)
    for line in (*gaps(not_read, timeline), *cautions(run, config, timeline)):
        warn(f"fttui: caution: {line}")
    if options.out is None:
        say(text.rstrip("\n"))
        return 0
    write_new(options.out, text)
    say(f"{plural(len(timeline.changes), 'intervention')}; written to {options.out}")
    say(f"repeat the run with: fttui run --replay {quote(str(options.out))}")
    return 0


def readable_config(run: RunDirectory) -> RunConfig:
    """Return the configuration of a run of the engine.

    Raises:
        ConfigError: it is the run of a watched script, or the configuration is not valid any more.
    """
    from fttui.engine.config.load import read_resolved

    if script := run.identity().script:
        raise ConfigError(
            f"{run.id} is the run of a script, whose configuration is in the script: {script}"
        )
    return read_resolved(run.config)


def fresh_settings(config: RunConfig) -> RunSettings:
    """Return the settings with which a new run of a configuration starts."""
    return RunSettings(
        clip=config.train.clip or None,
        nonfinite=config.guard.nonfinite,
        autopilot=config.policy.autopilot,
        quarantine=config.data.kept_out,
    )


def recipe_text(
    run: RunDirectory, config: RunConfig, records: list[Record], timeline: SurvivingTimeline
) -> str:
    """Return the recipe of a run as a configuration file."""
    from msgspec.structs import replace

    from fttui.engine.config.load import dump_config
    from fttui.engine.config.schema import PlannedCommand

    planned = [PlannedCommand(step=one.step, command=one.command) for one in timeline.changes]
    last = max(timeline.steps, default=0)  # a run that stopped early has commands that are not due
    planned += [one for one in config.interventions if one.step > last]
    policy = replace(config.policy, autopilot="off")
    whole = replace(config, policy=policy, interventions=planned)
    comments = "".join(f"# {line}\n" for line in _origin(run, records, timeline))
    return comments + dump_config(whole)


def _origin(run: RunDirectory, records: list[Record], timeline: SurvivingTimeline) -> Iterator[str]:
    """Yield where a recipe comes from and what it needs."""
    yield f"Recipe of {run.id}: its configuration and the interventions of its surviving timeline."
    yield "Repeat the run with: fttui run --replay THIS_FILE"
    last = max(timeline.steps, default=0)
    yield f"Recorded: {plural(last, 'step')}; {timeline.abandoned_steps} more were rolled back."
    started = [r.event for r in records if isinstance(r.event, RunStarted) and r.event.devices]
    if started:
        versions = ", ".join(f"{name} {what}" for name, what in started[-1].versions.items())
        yield f"Losses repeat bit for bit with: {'; '.join(started[-1].devices)}; {versions}"


def gaps(not_read: Sequence[str], timeline: SurvivingTimeline) -> Iterator[str]:
    """Yield why interventions of a run may be missing."""
    for what in not_read:
        yield f"not read: {what}; interventions may be missing"
    if left_out := timeline.left_out:
        yield (
            f"the journal lacks the settings after {plural(len(left_out), 'command')}, first "
            f"{left_out[0]}; they are left out of the interventions"
        )


def cautions(run: RunDirectory, config: RunConfig, timeline: SurvivingTimeline) -> Iterator[str]:
    """Yield why a recipe may not repeat its run."""
    if before := sorted(one.name for one in run.path.glob("config.[0-9]*.yaml")):
        yield (
            f"the configuration was changed when the run was resumed ({', '.join(before)} before); "
            "the recipe has the newest one for all steps"
        )
    for name in timeline.means:
        yield (
            f"training continued from {name}, the mean of other checkpoints, which a recipe cannot "
            "reproduce; from that step on, the repeated run has different weights"
        )
    if unexplained := timeline.unexplained:
        yield (
            f"{plural(len(unexplained), 'step')}, first {unexplained[0]}, had a learning rate "
            "factor or clip that no command in the journal explains"
        )
    if config.train.early_stop is not None:
        yield (
            "train.early_stop also counts evaluations on command, which a recipe leaves out, so "
            "the repeated run may end at another step"
        )
