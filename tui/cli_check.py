"""`check`: whether a configuration can run here, how long it is and whether it fits."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from fttui.engine.errors import ConfigError

from .cli_options import Commands

if TYPE_CHECKING:
    from fttui.engine.config.schema import RunConfig


def add_commands(commands: Commands) -> None:
    """Add the subcommand."""
    parser = commands.add_parser("check", help="validate a configuration and estimate its needs")
    parser.add_argument("config", metavar="CONFIG", nargs="?", type=Path, help="a YAML file")
    parser.add_argument(
        "--set", dest="overrides", action="append", default=[], metavar="K=V", help="as for run"
    )
    parser.add_argument(
        "--schema", action="store_true", help="print the JSON Schema of configurations, for editors"
    )
    parser.set_defaults(handler=_check)


def _check(options: argparse.Namespace) -> int:
    from fttui.engine.config.schema_export import schema_text

    if options.schema:
        print(schema_text(), end="")
        return 0
    if options.config is None:
        raise ConfigError("which configuration? fttui check CONFIG (or --schema)")
    from fttui.engine.config.checks import check_hardware, require
    from fttui.engine.config.hardware import probe_hardware
    from fttui.engine.config.load import load_config

    loaded = load_config(options.config, options.overrides)
    hardware = probe_hardware()
    require(check_hardware(loaded.config, hardware), loaded.places, str(options.config))
    print(f"{options.config}: valid; {loaded.config.task} on {loaded.config.model.id}")
    for line in course(loaded.config):
        print(line)
    return 0


def course(config: RunConfig) -> Iterator[str]:
    """How long the run is, as far as it is known without reading the data."""
    from fttui.engine.config.plan import warmup_steps

    train = config.train
    per_step = train.batch * train.accumulate * train.devices
    unit = "pairs" if config.task == "contrastive" else "sequences"
    yield (
        f"step: {per_step} {unit} = batch {train.batch} × accumulate {train.accumulate} "
        f"× {train.devices} {'device' if train.devices == 1 else 'devices'}"
    )
    if train.steps is None:
        yield f"length: {train.epochs:g} epochs; the steps are known once the data are read"
        return
    warmup = warmup_steps(train.warmup, train.steps)
    yield f"length: {train.steps} steps, {train.steps * per_step} {unit}, {warmup} steps of warm-up"
