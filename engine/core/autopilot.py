"""Autopilot: decides whether a recovery is made without a person; it does no I/O."""

from __future__ import annotations

import msgspec

from .anomaly import ALARM, Alert

AT_ONCE = frozenset({"divergence"})
"""Kinds of alarms that call for a recovery at once, because they do not end by themselves. Others
wait for their verdict: most spikes recover, and the guard refuses updates that are not finite."""


class AutopilotDecision(msgspec.Struct, frozen=True, kw_only=True):
    """The autopilot's decision on one call for a recovery."""

    verdict: str
    """act, propose or wait."""
    reason: str
    budget_left: int


class Autopilot(msgspec.Struct, kw_only=True):
    """Recovers within a budget and with a cooldown; a rollback does not reset its history."""

    budget: int = 3
    """Recoveries per run."""
    cooldown: int = 50
    """Trained steps between two recoveries."""
    acted: int = 0
    """Recoveries made so far."""
    quiet_until: int = 0
    """Value of `trained` from which the autopilot may act again."""
    trained: int = 0
    """Steps trained so far; steps that a rollback has undone count too."""

    def step(self) -> None:
        """Count a finished training step."""
        self.trained += 1

    def decide(self, mode: str, why: str) -> AutopilotDecision:
        """Decide whether to recover now (act), to recommend it (propose), or to do nothing (wait).

        A decision to act uses one recovery of the budget and starts the cooldown.

        Args:
            mode: the autopilot's policy; act permits a recovery now, any other value only proposes.
            why: the reason of the call.
        """
        left = self.budget - self.acted
        if mode != "act":
            return AutopilotDecision(verdict="propose", reason=why, budget_left=left)
        if left <= 0:
            reason = f"{why}; the autopilot's budget of {self.budget} recoveries is used up"
            return AutopilotDecision(verdict="wait", reason=reason, budget_left=0)
        if (wait := self.quiet_until - self.trained) > 0:
            reason = f"{why}; the autopilot acted recently and waits {wait} more steps"
            return AutopilotDecision(verdict="wait", reason=reason, budget_left=left)
        self.acted += 1
        self.quiet_until = self.trained + self.cooldown
        return AutopilotDecision(verdict="act", reason=why, budget_left=left - 1)


def calls_at_once(alert: Alert) -> bool:
    """Whether an alert calls for a recovery without waiting for its verdict."""
    return alert.severity == ALARM and alert.kind in AT_ONCE
