"""Guard: refuses updates whose loss or gradient norm is not finite."""

from __future__ import annotations

import math
from enum import Enum
from typing import NamedTuple

import msgspec

from .anomaly.alerts import figure

HISTORY_STEPS = 100
MAX_ROLLBACKS = 2
"""Rollbacks the guard makes by itself; further ones would repeat what failed."""

_LARGEST = 3.4028234663852886e38
"""Largest finite fp32 value; larger values are infinite on a device."""


class Limits(NamedTuple):
    """Loss and gradient norm up to which an update is applied without the host's verdict.

    NaN and infinity are never within the limits.
    """

    loss: float = _LARGEST
    grad_norm: float = _LARGEST

    @classmethod
    def of(cls, loss: float | None, grad_norm: float | None) -> Limits:
        """Return limits for the given values; None sets no limit but finiteness."""
        known = [_LARGEST if value is None else min(value, _LARGEST) for value in (loss, grad_norm)]
        return cls(*known)

    def hold(self, loss: float, grad_norm: float) -> bool:
        """Whether loss and gradient norm are within the limits."""
        return loss <= self.loss and grad_norm <= self.grad_norm


NOTHING_PASSES = Limits(-math.inf, -math.inf)


class UpdateVerdict(Enum):
    """The guard's verdict on an update; all but `APPLY` leave the weights unchanged."""

    APPLY = "apply"
    SKIP = "skip"
    HALT = "halt"
    ROLLBACK = "rollback"


class GuardDecision(msgspec.Struct, frozen=True):
    """A verdict with its reason, which is empty for `APPLY`."""

    verdict: UpdateVerdict
    reason: str = ""


def nothing_to_learn(step: int) -> GuardDecision:
    """Return the decision on a step without targets, whose update would be momentum and decay."""
    return GuardDecision(
        UpdateVerdict.SKIP,
        f"step {step} has nothing to learn, because it has no target or all weights are 0; no "
        "update was made",
    )


class Guard(msgspec.Struct, kw_only=True):
    """Checks every update before it is applied; the history of refused ones is in a checkpoint."""

    budget: int = 5
    """Largest number of updates skipped within `HISTORY_STEPS` steps."""
    skipped_at: list[int] = []
    """Steps of the recently skipped updates."""
    rollbacks: int = 0
    """Rollbacks that the guard asked for; a rollback does not reset the count, see `rewound`."""
    refuses: bool = True
    """Whether the trainer can refuse an update; every update is applied otherwise."""
    refused_at: int = 0
    """Step of the newest update that was not applied; 0 before the first one."""

    def judge(
        self, step: int, loss: float, grad_norm: float | None, nonfinite: str
    ) -> GuardDecision:
        """Return the decision on one update, and remember it if the update is refused.

        Args:
            step: number of the update's step.
            loss: loss of this rank; if it is not finite on another rank, the gradient norm is not
                finite on any rank.
            grad_norm: global gradient norm before clipping; None if it was not measured.
            nonfinite: what to do with an update that is not finite: skip, halt or rollback. Beyond
                `budget` skips, or `MAX_ROLLBACKS` rollbacks, the decision is to halt.
        """
        bad = _what_is_bad(loss, grad_norm) if self.refuses else None
        if bad is None:
            return GuardDecision(UpdateVerdict.APPLY)
        self.refused_at = step
        if nonfinite == "halt":
            return GuardDecision(
                UpdateVerdict.HALT, f"{bad} at step {step}; halting, as guard.nonfinite says"
            )
        if nonfinite == "rollback":
            return self._roll_back(step, bad)
        return self._skip(step, bad)

    def _skip(self, step: int, bad: str) -> GuardDecision:
        recent = [at for at in self.skipped_at if step - HISTORY_STEPS < at < step]
        self.skipped_at = [*recent, step]
        if len(recent) >= self.budget:
            return GuardDecision(
                UpdateVerdict.HALT,
                f"{bad} at step {step}; halted, because {len(recent)} updates were skipped in the "
                f"last {HISTORY_STEPS} steps already (guard.nonfinite_budget: {self.budget})",
            )
        left = self.budget - len(self.skipped_at)
        return GuardDecision(
            UpdateVerdict.SKIP, f"{bad} at step {step}; update skipped, {left} more allowed"
        )

    def _roll_back(self, step: int, bad: str) -> GuardDecision:
        if self.rollbacks >= MAX_ROLLBACKS:
            return GuardDecision(
                UpdateVerdict.HALT,
                f"{bad} at step {step}; halted, because {self.rollbacks} rollbacks did not help",
            )
        self.rollbacks += 1
        reason = f"{bad} at step {step}; rolling back, as guard.nonfinite says"
        return GuardDecision(UpdateVerdict.ROLLBACK, reason)

    def spares(self, step: int) -> bool:
        """Take back the rollback asked for at a step, count a skipped update instead, return True.

        Return False, and change nothing, if the budget of skipped updates is used up.
        """
        recent = [at for at in self.skipped_at if step - HISTORY_STEPS < at < step]
        if len(recent) >= self.budget:
            return False
        self.skipped_at = [*recent, step]
        self.rollbacks = max(self.rollbacks - 1, 0)
        return True

    def rewound(self, saved: Guard) -> Guard:
        """Return the guard after a return to a checkpoint, from the guard `saved` in it.

        Refused updates are those of the checkpoint; the rollbacks of this process stay counted.
        """
        return Guard(
            budget=self.budget,
            skipped_at=list(saved.skipped_at),
            rollbacks=self.rollbacks,
            refuses=self.refuses,
            refused_at=max([saved.refused_at, *saved.skipped_at]),
        )


def _what_is_bad(loss: float, grad_norm: float | None) -> str | None:
    if not math.isfinite(loss):
        return f"loss is {figure(loss)}"
    if grad_norm is not None and not math.isfinite(grad_norm):
        return f"gradient norm is {figure(grad_norm)}"
    return None
