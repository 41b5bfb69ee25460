"""`lr-find`: find a learning rate by a range test on a temporary run."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator

import msgspec

from fttui.engine.errors import ConfigError, TrainingFailed
from fttui.engine.protocol.events import LrRangeTested

from ..options import Commands, say, say_json
from ..preflight.training_packages import require_training_packages
from .probe import add_probe_options, probe

_FEWEST_STEPS = 10
_SIZE = (78, 20)
"""Columns and lines of the plot, which fits 80×24."""


def add_commands(commands: Commands) -> None:
    """Register the subcommand `lr-find` of `fttui`."""
    find = commands.add_parser("lr-find", help="find a learning rate by a range test, with a plot")
    add_probe_options(find)
    low, high = "lowest learning rate (default 1e-6)", "highest learning rate (default 1e-1)"
    find.add_argument("--low", metavar="LR", type=float, default=1e-6, help=low)
    find.add_argument("--high", metavar="LR", type=float, default=1e-1, help=high)
    steps = "optimizer steps of the sweep (default 60)"
    find.add_argument("--steps", metavar="N", type=int, default=60, help=steps)
    find.set_defaults(handler=_find)


def _find(options: argparse.Namespace) -> int:
    low, high, steps = options.low, options.high, options.steps
    if not 0 < low < high < math.inf or steps < _FEWEST_STEPS:
        raise ConfigError(
            f"expected 0 < --low < --high and --steps of at least {_FEWEST_STEPS}; got --low "
            f"{low:g}, --high {high:g}, --steps {steps}"
        )
    require_training_packages("fttui lr-find")
    wanted = ["--lr-find", *(f"{value!r}" for value in (low, high, steps))]
    with probe(options, _only_the_sweep(low, steps), wanted, LrRangeTested) as made:
        if made.exit_code:
            return made.exit_code
        if made.found is None:
            raise TrainingFailed("the sweep was stopped before its end; run lr-find again")
        if options.json:
            say_json(msgspec.to_builtins(made.found))
        else:
            for line in (*plot(made.found, *_SIZE).splitlines(), *summary(made.found)):
                say(line)
    return 0


def _only_the_sweep(low: float, steps: int) -> list[str]:
    """Return the configuration overrides of a sweep of `steps` steps from `low` on.

    They switch the schedule off, add one step, and skip updates that are not finite.
    """
    return [
        f"train.lr={low!r}",
        f"train.steps={steps + 1}",
        "train.schedule=constant",
        "train.lr_floor=0",
        "guard.nonfinite=skip",
    ]


def plot(found: LrRangeTested, columns: int, lines: int) -> str:
    """Return a plot of the smoothed loss over log10 of the learning rate, as colourless text."""
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
    """Yield the result of the sweep: where it ended and which learning rates to try."""
    top = found.rates[-1] if found.rates else 0.0
    why = "the loss diverged" if found.diverged else "it reached --high"
    yield f"the sweep ended at learning rate {top:.2g}: {why}"
    if found.steepest is None or found.below_lowest is None:
        yield "the loss never fell; try a lower --low or more --steps"
        return
    yield f"learning rate of the steepest descent      {found.steepest:.2g}"
    yield f"a tenth of the rate with the lowest loss   {found.below_lowest:.2g}"
    low, high = sorted((found.steepest, found.below_lowest))
    yield f"try train.lr between {low:.1e} and {high:.1e}"
