"""Learning rate schedules that transformers lacks, as functions of the step."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from ..config.schema import TrainConfig
from ..protocol.settings import RestOfSchedule

ONE_CYCLE_START = 1 / 25
"""Share of the learning rate at which one_cycle begins.

Source: Smith, Topin 2018, with the value of fast.ai.
"""

Factor = Callable[[int], float]
"""Function from finished optimizer steps to the factor on the learning rate."""


def own_factor(train: TrainConfig, steps: int, warmup: int) -> Factor | None:
    """Return the factor on the learning rate for a schedule that transformers lacks, or None.

    Args:
        train: schedule and its settings.
        steps: optimizer steps of the run.
        warmup: how many of them are warm-up.
    """
    floor = train.lr_floor
    if train.schedule == "one_cycle":
        return partial(one_cycle, steps=steps, warmup=warmup, floor=floor)
    shapes: dict[str, Callable[[float], float]] = {
        "exponential": partial(exponential, floor=floor),
        "step": partial(
            drops, milestones=tuple(train.schedule_milestones), gamma=train.schedule_gamma
        ),
    }
    if floor:
        shapes["cosine_restarts"] = partial(restarts, cycles=train.schedule_cycles, floor=floor)
    shape = shapes.get(train.schedule)
    return None if shape is None else partial(_after_warmup, shape, steps, warmup)


def _after_warmup(shape: Callable[[float], float], steps: int, warmup: int, step: int) -> float:
    """Return the linear rise of the warm-up, then the shape over the share of the other steps."""
    if step < warmup:
        return step / warmup
    return shape(min(1.0, (step - warmup) / max(1, steps - warmup)))


def exponential(share: float, *, floor: float) -> float:
    """Return a decay by the same factor in every step, from 1 to `floor`, which is above 0."""
    return float(floor**share)


def drops(share: float, *, milestones: tuple[float, ...], gamma: float) -> float:
    """Return `gamma` to the power of the number of milestones that have been reached."""
    return float(gamma ** sum(share >= milestone for milestone in milestones))


def restarts(share: float, *, cycles: int, floor: float) -> float:
    """Return cosine decays from 1 to `floor`, each of which begins at 1 again."""
    if share >= 1:
        return floor
    return _between(1.0, floor, cycles * share % 1.0)


def one_cycle(step: int, *, steps: int, warmup: int, floor: float) -> float:
    """Return the one_cycle factor on the learning rate after `step` steps.

    It rises from `ONE_CYCLE_START` to 1 during the warm-up, then falls to `floor`, by cosines.
    """
    if step < warmup:
        return _between(ONE_CYCLE_START, 1.0, step / warmup)
    return _between(1.0, floor, min(1.0, (step - warmup) / max(1, steps - warmup)))


@dataclass(frozen=True)
class PlannedSteps:
    """The end of a schedule: its last step, and the rate that it falls to."""

    steps: int
    floor: float

    def rate(self, rest: RestOfSchedule, step: int) -> float:
        """Return the rate of a replaced schedule after a number of finished steps."""
        return rest_of_schedule(rest, step, self.steps, self.floor)


def rest_of_schedule(rest: RestOfSchedule, step: int, steps: int, floor: float) -> float:
    """Return the learning rate after `step` finished steps by the rest of a schedule.

    Args:
        rest: the schedule; `step` is not before its start.
        step: finished optimizer steps.
        steps: optimizer steps of the run.
        floor: the rate at the last step, unless the shape is constant or starts below it.
    """
    end = min(floor, rest.lr)
    share = min(1.0, (step - rest.start) / max(1, steps - rest.start))
    if rest.shape == "cosine":
        return _between(rest.lr, end, share)
    return rest.lr if rest.shape == "constant" else rest.lr + (end - rest.lr) * share


def _between(start: float, end: float, share: float) -> float:
    return end + (start - end) * (1 + math.cos(math.pi * share)) / 2
