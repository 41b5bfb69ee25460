"""Incidents: alerts of one cause, under the id of the first of them."""

from __future__ import annotations

import msgspec

from ..protocol.thresholds import INCIDENT_STEPS, TRAINING_KINDS
from .anomaly import ALARM, INFO, Alert

__all__ = ["INCIDENT_STEPS", "Incidents"]


class Incidents(msgspec.Struct, kw_only=True):
    """Gives every alert the id of its incident.

    An incident lasts until all of its alarms have their verdicts, or until no alert has joined it
    for `INCIDENT_STEPS`. It goes on after a rollback: an alarm that comes back has the same cause.
    The names of the fields are part of the file format of checkpoints.
    """

    newest: str = ""
    """Id of the incident that goes on; empty if none does."""
    step: int = 0
    """Step of the newest alert of that incident."""
    odd: str = ""
    """Id of the newest alert that one odd record explains; empty without one."""
    odd_step: int = 0
    alarms: list[str] = []
    """Ids of the alarms without a verdict."""

    def join(self, alert: Alert, public_id: str) -> str:
        """Return the id of the incident of an alert; its own id if it begins one.

        Alerts about the machine or the progress are incidents of their own; a hint (severity info)
        belongs to none, which is an empty id. The alerts of a step that one odd record explains are
        an incident of their own too, because it causes no later ones.

        Args:
            alert: the alert.
            public_id: its id in the journal.
        """
        if alert.severity == ALARM and alert.id not in self.alarms:
            self.alarms.append(alert.id)
        if alert.severity == INFO:
            return ""
        if alert.kind not in TRAINING_KINDS:
            return public_id
        if alert.explained_by:
            if self.odd_step != alert.step:
                self.odd_step, self.odd = alert.step, public_id
            return self.odd
        self.newest = self.at(alert.step) or public_id
        self.step = alert.step
        return self.newest

    def at(self, step: int) -> str:
        """Return the id of the incident that an alert about the weights would join; else empty."""
        return self.newest if abs(step - self.step) <= INCIDENT_STEPS else ""

    def judged(self, alert: str) -> bool:
        """Take note of the verdict on an alert; return whether it ends the incident."""
        if alert not in self.alarms:
            return False
        self.alarms.remove(alert)
        if not self.alarms:
            self.newest = ""
        return not self.alarms

    def undone(self, alert: str) -> None:
        """Take note that a rollback has undone an alert, which does not end the incident."""
        if alert in self.alarms:
            self.alarms.remove(alert)

    def or_saved(self, saved: Incidents) -> Incidents:
        """Return what goes on after a checkpoint is restored.

        These are the incidents of this process, because a rollback ends none. If it has none, they
        are the saved ones.
        """
        return self if self.newest or self.alarms else saved
