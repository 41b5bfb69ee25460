"""What is settled before a sweep begins: its space, its plan, and what a trial takes."""

from __future__ import annotations

import argparse
import re
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from fttui.engine.errors import ConfigError, NoSuchRun
from fttui.engine.run.run_dir import RunDirectory
from fttui.engine.run.run_index import list_runs

from ...connection.race.measured import measured_times
from ...view_model.race.race_state import EVAL, LOSS
from ...view_model.race.rounds import MeasuredTimes
from ...view_model.sweep.search_space import MOST_POINTS, Axis, points
from ...view_model.sweep.sweep_plan import Sampler, SweepPlan
from .sweep_folder import sweeps

if TYPE_CHECKING:
    from fttui.engine.config.schema import RunConfig

_TRIALS = 20
_EVALUATIONS = 5
"""Evaluations of a trial if the configuration has fewer, so that it can end early."""
_LARGEST_SEED = 2**31
_UNITS_S = {"d": 86_400, "h": 3600, "m": 60, "s": 1, "": 1}
_OF_THE_SWEEP = {
    "name": "each trial has a name of its own",
    "train.steps": "all trials have the same number of steps; give it with --steps",
    "train.epochs": "all trials have the same number of steps; give it with --steps",
    "eval.every": "trials are compared at the same steps; give it with --set",
    "eval.per_epoch": "trials are compared at the same steps; set eval.every with --set",
}
"""Keys that cannot vary, each with the reason."""


def time_limit_s(text: str) -> float:
    """Return the seconds of a time such as `90m`, `2h30m` or `3600`.

    Raises:
        ConfigError: it is no such time, or not above 0.
    """
    parts = re.findall(r"(\d+(?:\.\d+)?)\s*([dhms]?)", text, re.ASCII)
    total = sum(float(number) * _UNITS_S[unit] for number, unit in parts)
    form = r"\s*(?:\d+(?:\.\d+)?\s*[dhms]\s*)*(?:\d+(?:\.\d+)?\s*)?"
    if not re.fullmatch(form, text, re.ASCII) or total <= 0:
        raise ConfigError(f"--time-limit: got {text!r}, expected a time such as 90m or 2h30m")
    return total


def whole_only(key: str) -> bool:
    """Whether a key of the configuration takes whole numbers and no others."""
    from fttui.engine.config.messages import describe_key
    from fttui.engine.config.schema import RunConfig

    words = describe_key(key, RunConfig)
    return "whole number" in words and "number" not in words.replace("whole number", "")


def make_plan(
    path: Path,
    config: RunConfig,
    words: list[str],
    space: tuple[Axis, ...],
    options: argparse.Namespace,
) -> SweepPlan:
    """Return the plan of a new sweep.

    Args:
        path: the configuration file.
        config: what it holds.
        words: the search space as it was typed.
        space: its axes.
        options: the command line.

    Raises:
        ConfigError: a number or the metric is not valid, or the sampler cannot take the space.
    """
    evaluates = bool(config.data.eval or config.data.eval_fraction)
    by = options.by or (f"{EVAL}loss" if evaluates else LOSS)
    _require_metric(by, config, evaluates=evaluates)
    steps = config.train.steps if options.steps is None else options.steps
    trials = _TRIALS if options.trials is None else options.trials
    require_seed(options.seed)
    if steps is None:
        raise ConfigError(f"{path} sets train.epochs; give the steps per trial: --steps N")
    if steps < 1 or trials < 1:
        raise ConfigError(f"--steps and --trials must be ≥ 1, got {steps} and {trials}")
    if config.train.nodes > 1:
        raise ConfigError(
            f"{path}: train.nodes is {config.train.nodes}; a sweep trains on one machine: give "
            "--set train.nodes=1, or sweep on each machine with another --seed"
        )
    most = points(space)
    sampler: Sampler = options.sampler or "tpe"
    if sampler == "grid" and (most is None or most > MOST_POINTS):
        raise ConfigError(
            f"--sampler grid needs values or ranges with a step, such as 0..100:10, and at most "
            f"{MOST_POINTS:,} combinations"
        )
    return SweepPlan(
        name=config.name,
        config=str(path.absolute()),
        words=words,
        trials=most if sampler == "grid" and options.trials is None and most else trials,
        steps=steps,
        by=by,
        every=_every(config.eval.every, steps),
        sampler=sampler,
        pruner=options.pruner or "median",
        seed=options.seed or 0,
        created=time.time(),
    )


def require_seed(seed: int | None) -> None:
    """Check that the sampler can take a seed.

    Raises:
        ConfigError: it is below 0, or too large.
    """
    if seed is not None and not 0 <= seed < _LARGEST_SEED:
        raise ConfigError(f"--seed must be from 0 to {_LARGEST_SEED - 1}, got {seed}")


def _require_metric(by: str, config: RunConfig, *, evaluates: bool) -> None:
    if by != LOSS and not by.startswith(EVAL):
        raise ConfigError(f"--by must be loss or eval.NAME, such as eval.loss; got {by}")
    if by != LOSS and not evaluates:
        raise ConfigError(
            f"--by {by}: the configuration has no evaluation data; compare the training loss: "
            f"--by {LOSS}"
        )
    from fttui.engine.config.checks.objective import measured_metrics

    known = measured_metrics(config)
    if by != LOSS and by.removeprefix(EVAL) not in known:
        names = ", ".join(f"{EVAL}{name}" for name in known)
        raise ConfigError(f"--by {by}: the evaluations of {config.name} have {names}; name one")


def _every(configured: int, steps: int) -> int:
    """Return the steps between evaluations: as configured, unless there are too few of them."""
    if configured and steps // configured >= 2:
        return configured
    return max(1, steps // _EVALUATIONS)


def trials_of(plan: SweepPlan, space: tuple[Axis, ...]) -> int:
    """Return the number of trials, at most that of all combinations."""
    most = points(space)
    return plan.trials if most is None else min(most, plan.trials)


def require_valid(path: Path, space: tuple[Axis, ...], overrides: list[str]) -> None:
    """Check each named value and both ends of each range, with the first values of the others.

    Raises:
        ConfigError: a key is unknown, or a value is not valid.
    """
    from fttui.engine.config.load import load_config

    for axis in space:
        if why := _OF_THE_SWEEP.get(axis.key):
            raise ConfigError(f"{axis.word}: {axis.key} cannot vary: {why}")
    first = {axis.key: axis.tried_first[0] for axis in space}
    for axis in space:
        for value in axis.tried_first:
            tried = [f"{key}={text}" for key, text in {**first, axis.key: value}.items()]
            try:
                load_config(path, [*overrides, *tried])
            except ConfigError as error:
                text = str(error)
                for one in tried:  # the user typed no --set for a key that varies
                    text = text.replace(f"--set {one}", one)
                raise ConfigError(text) from None


def measured(root: Path, path: Path) -> tuple[MeasuredTimes, str]:
    """Return what the newest run of a configuration has measured, and its id; empty without one.

    The trials of its earlier sweeps count, too.
    """
    given = str(path.absolute())
    same = {given, *(str(one.base) for one in sweeps(root) if one.searches(given))}
    for summary in list_runs(root):
        run = RunDirectory(Path(summary.path))
        with suppress(NoSuchRun):
            if run.identity().config in same and summary.step > 1:
                return measured_times(run, starts=True), run.id
    return MeasuredTimes(), ""
