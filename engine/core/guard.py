"""What happens to an update whose loss or gradient is not finite: the last gate to the weights."""

from __future__ import annotations

import math
from enum import Enum
from typing import NamedTuple

import msgspec

HISTORY_STEPS = 100
MAX_ROLLBACKS = 2
"""Going back by itself more often than this, the guard would only repeat what failed."""


_LARGEST = 3.4028234663852886e38
"""Largest finite fp32; what is above it is not finite on a device."""


class Limits(NamedTuple):
    """Up to where an update is beyond suspicion; neither NaN nor infinity is within any."""

    loss: float = _LARGEST
    grad_norm: float = _LARGEST

    @classmethod
    def of(cls, loss: float | None, grad_norm: float | None) -> Limits:
        """Those that are known."""
        known = [_LARGEST if value is None else min(value, _LARGEST) for value in (loss, grad_norm)]
        return cls(*known)

    def hold(self, loss: float, grad_norm: float) -> bool:
        """Both are within."""
        return loss <= self.loss and grad_norm <= self.grad_norm


NOTHING_PASSES = Limits(-math.inf, -math.inf)


class UpdateVerdict(Enum):
    """What is to be done with the update at hand; all but `APPLY` leave the weights unchanged."""

    APPLY = "apply"
    SKIP = "skip"
    HALT = "halt"
    ROLLBACK = "rollback"


class GuardDecision(msgspec.Struct, frozen=True):
    """A verdict and, unless it is `APPLY`, why."""

    verdict: UpdateVerdict
    reason: str = ""


class Guard(msgspec.Struct, kw_only=True):
    """Judges every update; its history is part of the training state."""

    budget: int = 5
    """Updates that may be skipped within the last `HISTORY_STEPS` steps."""
    skipped_at: list[int] = []
    """Steps of recent skips."""
    rollbacks: int = 0
    """Rollbacks it asked for and that a rollback does not undo; see `rewound`."""

    def judge(self, step: int, loss: float, grad_norm: float | None, policy: str) -> GuardDecision:
        """Decide on one update and remember it.

        Args:
            step: number of the step the update belongs to.
            loss: raw loss over all ranks.
            grad_norm: global norm before clipping; None when not measured.
            policy: skip, halt or rollback.
        """
        bad = _what_is_bad(loss, grad_norm)
        if bad is None:
            return GuardDecision(UpdateVerdict.APPLY)
        if policy == "halt":
            return GuardDecision(UpdateVerdict.HALT, f"{bad} at step {step}; policy is halt")
        if policy == "rollback":
            return self._roll_back(step, bad)
        return self._skip(step, bad)

    def _skip(self, step: int, bad: str) -> GuardDecision:
        recent = [at for at in self.skipped_at if step - HISTORY_STEPS < at < step]
        self.skipped_at = [*recent, step]
        if len(recent) >= self.budget:
            return GuardDecision(
                UpdateVerdict.HALT,
                f"{bad} at step {step}; {len(recent)} updates were skipped in the last "
                f"{HISTORY_STEPS} steps already (budget {self.budget})",
            )
        left = self.budget - len(self.skipped_at)
        return GuardDecision(
            UpdateVerdict.SKIP, f"{bad} at step {step}; update skipped, {left} more allowed"
        )

    def _roll_back(self, step: int, bad: str) -> GuardDecision:
        if self.rollbacks >= MAX_ROLLBACKS:
            return GuardDecision(
                UpdateVerdict.HALT,
                f"{bad} at step {step} after {self.rollbacks} rollbacks because of it",
            )
        self.rollbacks += 1
        return GuardDecision(UpdateVerdict.ROLLBACK, f"{bad} at step {step}; policy is rollback")

    def rewound(self, saved: Guard) -> Guard:
        """The guard after a rollback: its state then, but with the rollbacks of now."""
        return Guard(
            budget=self.budget, skipped_at=list(saved.skipped_at), rollbacks=self.rollbacks
        )


def _what_is_bad(loss: float, grad_norm: float | None) -> str | None:
    if not math.isfinite(loss):
        return f"loss is {loss}"
    if grad_norm is not None and not math.isfinite(grad_norm):
        return f"gradient norm is {grad_norm}"
    return None
