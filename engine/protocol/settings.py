"""The settings of a run that a person can change while it trains."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

MOST_KEPT, LONGEST_KEPT = 16, 2000
"""Largest number of prompts that are kept for evaluations, and their most characters."""
MOST_QUARANTINED = 1000
"""Largest number of samples in quarantine; every journaled change of the settings lists them."""


AgentMode = Literal["propose", "act"]
"""What an agent may do: only propose commands, or also send them within its limits."""


class Leash(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of agents that only the engine can check, because it knows what a command sets."""

    lr_low: float
    """Smallest factor on the learning rate that agents may reach in total."""
    lr_high: float
    """Largest factor on the learning rate that agents may reach in total."""


SCHEDULE_SHAPES = ("constant", "linear", "cosine")
"""Shapes that the rest of a learning rate schedule can be given while a run trains."""


class RestOfSchedule(msgspec.Struct, frozen=True, kw_only=True):
    """A learning rate schedule that replaces the configured one from a step on."""

    shape: str
    """constant, linear or cosine: how the rate gets from `lr` to its end at the last step."""
    start: int
    """Number of finished steps from which on it counts; before, the configured one does."""
    lr: float
    """The schedule's learning rate at its start, before the factor `lr_scale`."""


class RunSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings in force.

    A rollback changes only those that it names. A restart keeps them, but only an automatic restart
    keeps a pause.
    """

    lr_scale: float = 1.0
    """Factor on the learning rate of the schedule."""
    lr_scale_before_agents: float | None = None
    """The factor before agents changed it, to which their limits refer.

    None unless agents were the last to change it.
    """
    clip: float | None = None
    """Max gradient norm; None when clipping is off."""
    clip_percentile: float | None = None
    """Percentile of recent gradient norms that the clip follows; None for a fixed clip.

    While it is set, `clip` is the percentile's value at the moment of the command.
    """
    paused: bool = False
    release: bool = False
    """Whether a pause also frees the GPU's memory for other programs."""
    pause_at_step: int | None = None
    """Optimizer step at which the run pauses; None when no pause is planned."""
    nonfinite: str = "skip"
    """What the guard does on a non-finite number: skip, halt or rollback."""
    autopilot: str = "propose"
    """What the autopilot does about an anomaly: off, propose or act."""
    quarantine: tuple[str, ...] = ()
    """Ids of the samples that are kept out of training, in the order in which they were named."""
    mix: dict[str, float] = {}
    """Weights of the sources by name; empty for those of the configuration."""
    weight_decay: float | None = None
    """Weight decay of the optimizer; None for that of the configuration."""
    dropout: float | None = None
    """Rate of the dropout before the adapter; None for that of the configuration."""
    samples: tuple[str, ...] = ()
    """Prompts that are continued at each evaluation beside those of `eval.samples`."""
    schedule: RestOfSchedule | None = None
    """The rest of the learning rate schedule; None for the configured schedule."""


@dataclass(frozen=True)
class LearningRate:
    """The learning rate in force, as far as it is known."""

    schedule: float | None = None
    """Rate of the schedule at the newest step; None before the first step."""
    scale: float = 1.0
    """Factor on the schedule."""

    def raised_to_scale(self, scale: float) -> float:
        """Return the factor by which another scale of the schedule raises the rate.

        It is infinite if the present scale is 0.
        """
        return scale / self.scale if self.scale else math.inf

    def raised_to(self, value: float) -> float | None:
        """Return the factor by which a rate is above the present one; infinite if that one is 0.

        None before the first step, when the present one is not known.
        """
        if self.schedule is None:
            return None
        now = self.schedule * self.scale
        return value / now if now else math.inf


def configured_or(value: float | None) -> str:
    """Return the value of a setting in words; None stands for that of the configuration."""
    return "as configured" if value is None else f"{value:.4g}"


def schedule_text(schedule: RestOfSchedule | None) -> str:
    """Return the rest of a schedule in words, such as `cosine from 0.0001 at step 400`."""
    if schedule is None:
        return "as configured"
    return f"{schedule.shape} from {schedule.lr:.3g} at step {schedule.start}"


def mix_text(weights: Mapping[str, float]) -> str:
    """Return weights of sources in words, such as `code 2, math 1`."""
    return ", ".join(f"{name} {weight:g}" for name, weight in weights.items()) or "as configured"


def why_without_effect(start: int | None, total_steps: int) -> str:
    """Return why a schedule that begins at a step would change nothing; empty if it would.

    Args:
        start: the step; None for the present one.
        total_steps: the planned steps of the run; 0 if they are not known.
    """
    if start is None or not total_steps or start < total_steps:
        return ""
    return (
        f"got from={start}, but the run ends after step {total_steps:,}, so the schedule would "
        f"have no effect; give a step from 0 to {total_steps - 1:,}"
    )


def why_not_mixed(weights: Mapping[str, float], names: Sequence[str]) -> str:
    """Return why the sources with these names cannot be mixed by weights; empty if they can."""
    twice = sorted({name for name in names if list(names).count(name) > 1})
    if twice:
        return f"two sources are named {twice[0]}; give each a `name` of its own in data.train"
    known = ", ".join(names)
    if unknown := [name for name in weights if name not in names]:
        return f"no source is named {unknown[0]!r}; the sources are {known}"
    if missing := [name for name in names if name not in weights]:
        return f"the weight of {missing[0]} is missing; name every source, 0 leaves one out"
    if not any(weights.values()):
        return "all weights are 0, so that nothing is left to train on; raise one of them"
    return ""
