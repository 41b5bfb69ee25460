"""An anomaly of the journal with its verdict, and which incident it belongs to."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fttui.engine.protocol.events import AnomalyRaised
from fttui.engine.protocol.thresholds import INCIDENT_STEPS, TRAINING_KINDS

ROLLED_BACK = "rolled back"
UNSETTLED = frozenset({"", "not recovered", "undecided"})
"""Verdicts after which an alarm may still call for something."""


@dataclass(frozen=True, eq=False)
class Anomaly:
    """An anomaly and its verdict; two are equal if they are the same object."""

    step: int
    time: float
    timeline: int
    event: AnomalyRaised
    incident: str = ""
    """Id of its incident."""
    branch: int = 0
    """Index of the branch on which it was raised."""
    verdict: str = ""
    """Empty until the anomaly has its verdict."""
    settled_at: float | None = None
    """Unix seconds of the verdict; None without one."""

    @property
    def open(self) -> bool:
        """Whether the anomaly is open, that is, has no verdict yet."""
        return not self.verdict


def incident_of(event: AnomalyRaised, step: int, known: Sequence[Anomaly]) -> str:
    """Return the id of the incident that a new anomaly belongs to.

    Journals of older versions do not name it; their anomalies are grouped by the rule of the
    engine: one that threatens the weights joins the incident of the newest other such anomaly at
    most `INCIDENT_STEPS` away, until all anomalies of that incident have their verdicts. Hints and
    alerts about the machine are incidents of their own.

    Args:
        event: the new anomaly.
        step: its step.
        known: the anomalies before it, oldest first.
    """
    if event.incident or event.severity == "info" or event.kind not in TRAINING_KINDS:
        return event.incident or event.id
    before = next((a for a in reversed(known) if _joins(a, event, step)), None)
    if before is None or abs(step - before.step) > INCIDENT_STEPS:
        return event.id
    if event.explained_by:
        return before.incident
    ended = not any(a.verdict in {"", ROLLED_BACK} for a in known if a.incident == before.incident)
    return event.id if ended else before.incident


def _joins(known: Anomaly, event: AnomalyRaised, step: int) -> bool:
    """Whether a new anomaly can be of the same cause as a known one."""
    if known.event.severity == "info" or known.event.kind not in TRAINING_KINDS:
        return False
    if event.explained_by:
        return bool(known.event.explained_by) and known.step == step
    return not known.event.explained_by


def undone(alarm: Anomaly, ends: Mapping[int, float]) -> bool:
    """Whether the weights no longer descend from the step of an alarm.

    `ends` has the last live step of every branch that the weights descend from, by its index.
    """
    return alarm.verdict == ROLLED_BACK or alarm.step > ends.get(alarm.branch, -math.inf)


def calls(alarm: Anomaly, ends: Mapping[int, float]) -> bool:
    """Whether an alarm may still need an action: it is unsettled and no rollback has undone it."""
    return alarm.verdict in UNSETTLED and not undone(alarm, ends)
