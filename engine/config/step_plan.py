"""The number of optimizer steps of a run, and the steps of evaluations and checkpoints."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from ..errors import ConfigError
from .schema import RunConfig


@dataclass(frozen=True)
class StepPlan:
    """The length of a run, known before it starts."""

    steps: int
    steps_per_epoch: float
    """Infinite for streamed data, whose length is unknown."""
    epochs: float
    warmup_steps: int
    samples_per_step: int
    """Records (or pairs) per optimizer step over all ranks."""


def plan_steps(config: RunConfig, train_examples: int | None, world_size: int) -> StepPlan:
    """Plan a run over `train_examples` records (None: unknown) on `world_size` ranks.

    An unknown number needs `train.steps`. With neither steps nor epochs it is one epoch. An epoch
    has whole steps if `train.sequences_per_update` is given, so that they do not depend on the
    micro-batch.

    Raises:
        ConfigError: The records do not fill one optimizer step.
    """
    train = config.train
    samples_per_step = train.micro_batch_size * train.accumulation * world_size
    if train_examples is not None and train_examples < samples_per_step:
        there = "is" if train_examples == 1 else "are"
        raise ConfigError(
            f"one optimizer step takes {examples_text(config, samples_per_step)} "
            f"({_factors(config, world_size)}), but there {there} only {train_examples:,} "
            f"to train on; {_remedy(config, world_size)}"
        )
    steps_per_epoch = math.inf
    if train_examples is not None:
        micro_batches = train_examples // (train.micro_batch_size * world_size)
        steps_per_epoch = micro_batches / train.accumulation
        if train.sequences_per_update is not None:
            steps_per_epoch = float(train_examples // samples_per_step)
    steps = train.steps or max(1, round((train.epochs or 1.0) * steps_per_epoch))
    return StepPlan(
        steps=steps,
        steps_per_epoch=steps_per_epoch,
        epochs=steps / steps_per_epoch,
        warmup_steps=warmup_steps(train.warmup, steps),
        samples_per_step=samples_per_step,
    )


def _factors(config: RunConfig, world_size: int) -> str:
    """Return the numbers that make up an optimizer step."""
    train = config.train
    if train.sequences_per_update is not None:
        return f"train.sequences_per_update {train.sequences_per_update}"
    devices = f"{world_size} {'device' if world_size == 1 else 'devices'}"
    return (
        f"train.batch {train.micro_batch_size} × train.accumulate {train.accumulation} × {devices}"
    )


def _remedy(config: RunConfig, world_size: int) -> str:
    """Return what makes an optimizer step smaller, without settings that are 1 already."""
    train = config.train
    keys = {
        "train.accumulate": train.accumulation,
        "train.batch": train.micro_batch_size,
        "the number of devices": world_size,
    }
    if train.sequences_per_update is not None:
        keys = {"train.sequences_per_update": train.sequences_per_update}
    lower = " or ".join(key for key, value in keys.items() if value > 1)
    return f"lower {lower}, or add data" if lower else "add data"


def examples_text(config: RunConfig, count: int) -> str:
    """Return a number of training examples in words, such as `16 records` or `4 packed rows`."""
    unit = "packed row" if config.data.packing else "record"
    return f"{count:,} {unit}{'' if count == 1 else 's'}"


def in_steps(config: RunConfig, plan: StepPlan) -> RunConfig:
    """Return the configuration with the intervals given per epoch turned into steps, at least 1.

    Raises:
        OverflowError: An interval is given per epoch, and the plan does not know the epoch's steps.
    """
    replaced: dict[str, Any] = {
        name: replace(section, every=max(1, round(plan.steps_per_epoch / section.per_epoch)))
        for name, section in (("eval", config.eval), ("checkpoint", config.checkpoint))
        if section.per_epoch is not None
    }
    return replace(config, **replaced)


def warmup_steps(warmup: float, steps: int) -> int:
    """Return the warm-up steps; `warmup` is their number, or below 1 their share of all steps."""
    return math.ceil(warmup * steps) if warmup < 1 else round(warmup)


def is_due(every: int, step: int, *, at_start: bool = False) -> bool:
    """Whether an evaluation or a checkpoint is due after `step` finished steps.

    Args:
        every: Steps between two of them; 0 is never.
        step: Finished optimizer steps.
        at_start: Whether one is due before the first step.
    """
    return at_start if step == 0 else every > 0 and step % every == 0
