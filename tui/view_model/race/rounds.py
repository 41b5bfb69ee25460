"""The rounds of a race by successive halving, and what they cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fttui.engine.protocol.usage.amounts import Usage

FEWEST_STEPS = 20
"""Steps below which no round ends: the losses of fewer steps hardly distinguish variants."""


@dataclass(frozen=True)
class Round:
    """A part of a race, after which the worse variants leave."""

    steps: int
    """Steps since the start of the race at its end."""
    entrants: int
    """Number of variants that train it."""
    keep: int
    """Number of variants that remain after it."""


def plan_rounds(variants: int, steps: int, *, halving: bool = True) -> tuple[Round, ...]:
    """Return the rounds of a race: after each one the better half remains, at last the best one.

    The rounds end after halves of halves of the steps, so that each trains as long as all before it
    together.

    Args:
        variants: number of variants, at least 2.
        steps: steps of a variant that stays to the end.
        halving: whether variants leave early; otherwise there is a single round.
    """
    most = int(math.log2(max(1.0, steps / FEWEST_STEPS)))
    early = min(math.ceil(math.log2(variants)) - 1, most) if halving else 0
    rounds, entrants = [], variants
    for number in range(early, -1, -1):
        keep = math.ceil(entrants / 2) if number else 1
        rounds.append(Round(steps // 2**number, entrants, keep))
        entrants = keep
    return tuple(rounds)


def steps_of(rounds: Sequence[Round]) -> int:
    """Return the steps that all variants train together."""
    before = [0, *(one.steps for one in rounds)]
    return sum(
        one.entrants * (one.steps - start) for one, start in zip(rounds, before, strict=False)
    )


@dataclass(frozen=True)
class MeasuredTimes:
    """The seconds that the parts of a run take, as the run has measured them; None if unknown."""

    step_s: float | None = None
    evaluation_s: float | None = None
    checkpoint_s: float | None = None
    checkpoint_bytes: int | None = None
    start_s: float | None = None
    """Seconds in which the engine loads model and data; 0 if it runs."""
    use_per_s: Usage | None = None
    """What the run uses in a second; None in journals of older versions."""


@dataclass(frozen=True)
class Cost:
    """What a race costs beside the training that the run had to do anyway."""

    steps: int
    seconds: float | None
    """Wall time of loading, training and measuring; None before the run has measured a step."""
    checkpoints: int
    bytes: int | None
    """Disk space of the checkpoints; None before the run has written one."""
    used: Usage | None = None
    """What the race uses; None if its time or the usage of the run is unknown."""
    not_measured: tuple[str, ...] = ()
    """Parts that are left out of the time, because the run has not measured them."""


def cost_of(rounds: Sequence[Round], times: MeasuredTimes, *, evaluates: bool) -> Cost:
    """Return the cost of a race; parts that the run has not measured are named beside the time.

    Args:
        rounds: the rounds of the race.
        times: what the run has measured.
        evaluates: whether each variant is evaluated after each round.
    """
    steps, stretches = steps_of(rounds), sum(one.entrants for one in rounds)
    start = times.start_s or 0.0
    each = _around_s(times, evaluates=evaluates)
    seconds = None if times.step_s is None else start + steps * times.step_s + stretches * each
    return _cost(steps, seconds, seconds, stretches + 1, times, evaluates=evaluates)


def cost_side_by_side(
    rounds: Sequence[Round],
    times: MeasuredTimes,
    devices: int,
    at_once: int,
    *,
    evaluates: bool,
    started: bool,
) -> Cost:
    """Return the cost of a race on several devices, with the second training of the best variant.

    Args:
        rounds: the rounds of the race.
        times: what the run has measured.
        devices: number of devices, on each of which an engine starts.
        at_once: number of variants that train as fast as alone; the processor counts as one.
        evaluates: whether each variant is evaluated after each round.
        started: whether the engine of the run itself has to be started, too.
    """
    longest = rounds[-1].steps
    steps, start = steps_of(rounds) + longest, times.start_s or 0.0
    wall = work = None
    if times.step_s is not None:
        each = _around_s(times, evaluates=evaluates)
        before = [0, *(one.steps for one in rounds)]
        parts = [
            (one.entrants, (one.steps - start_step) * times.step_s + each)
            for one, start_step in zip(rounds, before, strict=False)
        ]
        again = start * started + longest * times.step_s + each
        engines = min(devices, rounds[0].entrants)
        work = engines * start + sum(count * s for count, s in parts) + again
        wall = start + sum(math.ceil(count / at_once) * s for count, s in parts) + again
    return _cost(steps, wall, work, 2, times, evaluates=evaluates)


def _around_s(times: MeasuredTimes, *, evaluates: bool) -> float:
    """Return the seconds that a variant takes in a round beside its steps."""
    around = 2 * (times.checkpoint_s or 0.0)  # one is restored before, and one is written after it
    return around + ((times.evaluation_s or 0.0) if evaluates else 0.0)


def _cost(
    steps: int,
    wall_s: float | None,
    work_s: float | None,
    kept: int,
    times: MeasuredTimes,
    *,
    evaluates: bool,
) -> Cost:
    """Return a cost; `work_s` are the seconds of all engines together, and `kept` checkpoints."""
    size = times.checkpoint_bytes
    parts = {"loading": times.start_s, "checkpoints": times.checkpoint_s}
    parts |= {"evaluations": times.evaluation_s} if evaluates else {}
    unknown = tuple(name for name, seconds_each in parts.items() if seconds_each is None)
    used = None
    if work_s is not None and times.use_per_s is not None:
        used = times.use_per_s.scaled(work_s)
    return Cost(steps, wall_s, kept, None if size is None else size * kept, used, unknown)
