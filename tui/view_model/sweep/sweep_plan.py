"""The plan of a sweep, which is stored with it, and the results of its trials."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from ..race.race_state import rank_key

Sampler = Literal["tpe", "random", "grid"]
Pruner = Literal["median", "halving", "hyperband", "none"]
State = Literal["complete", "pruned", "failed", "open"]
"""How a trial ended; `open` is one that runs, or was interrupted."""
FAILURES = {
    "memory": "out of memory",
    "not finite": "halted, because loss or gradients were not finite",
    "settings": "with invalid settings",
    "stopped": "stopped by somebody",
    "no value": "without a value of the metric",
    "error": "with another error",
}
"""Kinds of failed trials, each in words."""


class SweepPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a sweep searches, and by which means."""

    name: str
    """Name of the configuration, which the names of the trials begin with."""
    config: str
    """Absolute path of the configuration that the user gave."""
    words: list[str]
    """The search space as it was typed, such as `train.lr=1e-5..1e-3:log`."""
    trials: int
    steps: int
    by: str
    every: int
    """Steps between two evaluations of a trial."""
    sampler: Sampler = "tpe"
    pruner: Pruner = "median"
    seed: int = 0
    created: float = 0.0
    """Unix seconds."""


@dataclass(frozen=True)
class TrialResult:
    """One trial of a sweep."""

    number: int
    """From 1 on."""
    values: dict[str, str]
    """The settings, key to value."""
    state: State
    run: str = ""
    """Id of its run; empty if none was started."""
    score: float | None = None
    step: int = 0
    seconds: float = 0.0
    why: str = ""
    """Why it ended early or failed; empty if it trained all steps."""
    failure: str = ""
    """The kind of failure, a key of `FAILURES`; empty if it did not fail."""
    same_as: int = 0
    """Number of the earlier trial with the same settings, whose result it has; 0 without one."""
    losses: dict[int, float] = field(default_factory=dict)
    """The finite training losses, by step; empty where they were not read."""


def ranked(by: str, trials: Sequence[TrialResult]) -> list[TrialResult]:
    """Return the trials, the best first: those with all steps, those that ended early, the rest."""
    order = {"complete": 0, "pruned": 1, "open": 2, "failed": 3}
    return sorted(trials, key=lambda one: (order[one.state], rank_key(by, one.score), one.number))


def best_of(by: str, trials: Sequence[TrialResult]) -> TrialResult | None:
    """Return the best trial with all steps; None without one."""
    first = next(iter(ranked(by, trials)), None)
    return first if first and first.state == "complete" and first.score is not None else None


def failures(trials: Sequence[TrialResult]) -> Counter[str]:
    """Return the number of failed trials by kind of failure."""
    return Counter(one.failure or "error" for one in trials if one.state == "failed")


def repeated(
    trials: Sequence[TrialResult], values: dict[str, str], training: Collection[int] = ()
) -> TrialResult | None:
    """Return the trial that had the same settings, or trains with them now; None without one.

    The seed is the same in all trials, so another one would train the same again.

    Args:
        trials: all trials.
        values: the settings.
        training: the numbers of the trials that train now.
    """
    counts = (
        one
        for one in trials
        if not one.same_as and (one.state in ("complete", "pruned") or one.number in training)
    )
    return next((one for one in counts if one.values == values), None)
