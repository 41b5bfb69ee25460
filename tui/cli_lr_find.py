"""`lr-find`: which learning rate to start with, by a run that is thrown away."""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from fttui.engine.errors import ConfigError, TrainingFailed
from fttui.engine.protocol.codec import decode_record
from fttui.engine.protocol.events import LrRangeTested
from fttui.engine.run.files import last_lines
from fttui.engine.run.journal import FrameReader
from fttui.engine.run.layout import RunDirectory

from .cli_options import Commands, say

_FEWEST_STEPS = 10
_SIZE = (78, 20)
"""Columns and lines of the plot: fits the smallest terminal."""
_LOG_LINES = 15


def add_commands(commands: Commands) -> None:
    """Add the subcommand."""
    find = commands.add_parser("lr-find", help="find a learning rate by a range test, with a plot")
    find.add_argument("config", metavar="CONFIG", type=Path, help="a YAML file")
    find.add_argument(
        "--set", dest="overrides", action="append", default=[], metavar="K=V",
        help="override a key of the configuration",
    )  # fmt: skip
    find.add_argument("--low", metavar="LR", type=float, default=1e-6, help="default 1e-6")
    find.add_argument("--high", metavar="LR", type=float, default=1e-1, help="default 1e-1")
    find.add_argument("--steps", metavar="N", type=int, default=60, help="default 60")
    find.add_argument("--json", action="store_true", help="the figures for a program")
    find.set_defaults(handler=_find)


def _find(options: argparse.Namespace) -> int:
    """Sweep in a folder that is removed; no run of the user's is touched."""
    if not 0 < options.low < options.high < math.inf or options.steps < _FEWEST_STEPS:
        raise ConfigError(
            f"lr-find sweeps from --low up to --high in at least {_FEWEST_STEPS} --steps; got "
            f"{options.low:g} to {options.high:g} in {options.steps}"
        )
    with tempfile.TemporaryDirectory(prefix="fttui-lr-", ignore_cleanup_errors=True) as folder:
        return _sweep(options, Path(folder))


def _sweep(options: argparse.Namespace, folder: Path) -> int:
    from .cli_follow import follow
    from .cli_run import load_checked
    from .client.spawn import new_run, start_engine

    overrides = [*options.overrides, *_only_the_sweep(options.low, options.steps)]
    loaded = load_checked(options.config, overrides)
    run = new_run(folder, options.config, loaded, overrides)
    wanted = ["--lr-find", *(f"{value!r}" for value in (options.low, options.high, options.steps))]
    engine = start_engine(run, loaded.config.train.devices, options=wanted)
    quiet = (lambda text: None) if options.json else say
    if code := follow(engine, quiet):
        say("\n".join(last_lines(run.engine_log, _LOG_LINES)) if options.json else "")
        return code
    found = result(run)
    if found is None:
        raise TrainingFailed("the sweep was stopped before its end; start it again")
    if options.json:
        say(json.dumps(msgspec.to_builtins(found)))
    else:
        for line in (*plot(found, *_SIZE).splitlines(), *summary(found)):
            say(line)
    return 0


def _only_the_sweep(low: float, steps: int) -> list[str]:
    """A run without schedule, evaluations and checkpoints; one step more than are looked at."""
    return [
        f"train.lr={low!r}",
        f"train.steps={steps + 1}",
        "train.epochs=null",
        "train.schedule=constant",
        "train.lr_floor=0",
        "train.early_stop=null",
        "train.restarts=0",
        "eval.every=0",
        "eval.at_start=false",
        "checkpoint.every=0",
        "checkpoint.at_start=false",
        "checkpoint.best=null",
        "guard.nonfinite=skip",
        "policy.autopilot=off",
        "hub.idle_s=0",
    ]


def result(run: RunDirectory) -> LrRangeTested | None:
    """What the run has found, once it is there."""
    for payload in FrameReader(run.journal):
        record = decode_record(payload)
        if record is not None and isinstance(record.event, LrRangeTested):
            return record.event
    return None


def plot(found: LrRangeTested, columns: int, lines: int) -> str:
    """The smoothed loss over the rate on a logarithmic axis, without colours."""
    import plotext

    figure = plotext.figure
    figure.clear.data()
    plotext.terminal.limit(False, False)
    figure.plot_size(columns, lines)
    logs = [math.log10(rate) for rate in found.rates]
    curve = figure.signal(logs, found.smoothed, marker=plotext.marker("braille"))
    curve.lines(True)
    figure.draw(curve)
    figure.title("smoothed loss over log10 of the learning rate")
    return str(plotext.uncolorize(str(figure.build().string())))


def summary(found: LrRangeTested) -> Iterator[str]:
    """What the curve says, in words."""
    top = found.rates[-1] if found.rates else 0.0
    why = "the loss diverged" if found.diverged else "the highest rate asked for"
    yield f"ended at {top:.2g}: {why}"
    if found.steepest is None or found.below_lowest is None:
        yield "the loss never fell; sweep from a lower --low, or over more --steps"
        return
    yield f"steepest descent             {found.steepest:.2g}"
    yield f"a tenth of the lowest loss's {found.below_lowest:.2g}"
    low, high = sorted((found.steepest, found.below_lowest))
    yield f"try train.lr between {low:.1e} and {high:.1e}"
