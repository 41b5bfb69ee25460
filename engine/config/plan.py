"""How many optimizer steps a run takes and what happens at which of them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..errors import ConfigError
from .schema import RunConfig


@dataclass(frozen=True)
class Plan:
    """The course of a run, known before it starts."""

    steps: int
    steps_per_epoch: float
    epochs: float
    warmup_steps: int
    samples_per_step: int
    """Records (or pairs) per optimizer step over all ranks."""
    eval_points: tuple[int, ...]
    """Steps after which an evaluation runs; 0 is before the first step."""
    checkpoint_points: tuple[int, ...]


def plan_run(config: RunConfig, train_examples: int | None, world_size: int) -> Plan:
    """Lay out a run over `train_examples` records (None: not known) on `world_size` ranks.

    Raises:
        ConfigError: the records do not fill one optimizer step.
    """
    train = config.train
    samples_per_step = train.batch * train.accumulate * world_size
    if train_examples is not None and train_examples < samples_per_step:
        raise ConfigError(
            f"one optimizer step takes {samples_per_step} records (train.batch {train.batch} × "
            f"train.accumulate {train.accumulate} × {world_size} devices), but there are only "
            f"{train_examples}; lower train.accumulate or train.batch, or add data"
        )
    steps_per_epoch = math.inf
    if train_examples is not None:
        steps_per_epoch = train_examples // (train.batch * world_size) / train.accumulate
    steps = train.steps or max(1, round((train.epochs or 1.0) * steps_per_epoch))
    return Plan(
        steps=steps,
        steps_per_epoch=steps_per_epoch,
        epochs=steps / steps_per_epoch,
        warmup_steps=warmup_steps(train.warmup, steps),
        samples_per_step=samples_per_step,
        eval_points=_points(config.eval.every, steps, config.eval.at_start),
        checkpoint_points=_points(config.checkpoint.every, steps, config.checkpoint.at_start),
    )


def warmup_steps(warmup: float, steps: int) -> int:
    """Steps of warm-up: below 1 a share of all steps, from 1 on a number of steps."""
    return math.ceil(warmup * steps) if warmup < 1 else round(warmup)


def _points(every: int, steps: int, at_start: bool) -> tuple[int, ...]:
    """Multiples of `every`, the last step, and 0 where asked for."""
    regular = range(every, steps, every) if every else ()
    return (*((0,) if at_start else ()), *regular, steps)
