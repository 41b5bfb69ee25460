"""What may be done about an anomaly without a person: decided here, carried out elsewhere. Pure."""

from __future__ import annotations

import msgspec

from .anomaly import ALARM, Alert

AT_ONCE = frozenset({"divergence"})
"""Kinds that do not come back by themselves. Others are left alone until their verdict: most spikes
come back, and an update that is not finite was refused by the guard."""


class AutopilotDecision(msgspec.Struct, frozen=True, kw_only=True):
    """What the autopilot does about one anomaly."""

    verdict: str
    """act, propose or wait."""
    reason: str
    budget_left: int


class Autopilot(msgspec.Struct, kw_only=True):
    """Recovers within a budget; its history is never undone by a rollback."""

    budget: int = 3
    cooldown: int = 50
    acted: int = 0
    quiet_until: int = 0
    """Steps it trained, counted over rollbacks, until it may act again."""
    trained: int = 0

    def step(self) -> None:
        """A step was trained."""
        self.trained += 1

    def decide(self, mode: str, why: str) -> AutopilotDecision:
        """Decide on a recovery that is called for.

        Args:
            mode: propose or act.
            why: what calls for it.
        """
        left = self.budget - self.acted
        if mode != "act":
            return AutopilotDecision(verdict="propose", reason=why, budget_left=left)
        if left <= 0:
            reason = f"{why}; its budget of {self.budget} is used up"
            return AutopilotDecision(verdict="wait", reason=reason, budget_left=0)
        if (wait := self.quiet_until - self.trained) > 0:
            reason = f"{why}; it acted lately and waits {wait} more steps"
            return AutopilotDecision(verdict="wait", reason=reason, budget_left=left)
        self.acted += 1
        self.quiet_until = self.trained + self.cooldown
        return AutopilotDecision(verdict="act", reason=why, budget_left=left - 1)


def calls_at_once(alert: Alert) -> bool:
    """The alert alone calls for a recovery, without waiting for its verdict."""
    return alert.severity == ALARM and alert.kind in AT_ONCE
