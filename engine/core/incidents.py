"""Incidents: alerts of one cause, under the id of the first of them."""

from __future__ import annotations

from ..protocol.thresholds import INCIDENT_STEPS, TRAINING_KINDS
from .anomaly import INFO, Alert

__all__ = ["INCIDENT_STEPS", "Incidents"]


class Incidents:
    """Gives every alert the id of its incident.

    An incident lasts until all of its alarms have their verdicts, or until no alert has joined it
    for `INCIDENT_STEPS`. It goes on after a rollback: an alarm that comes back has the same cause.
    """

    def __init__(self) -> None:
        self._id = ""
        self._step = 0
        self._odd = (0, "")
        """Step and id of the newest alert that one odd record explains."""

    def join(self, alert: Alert, public_id: str) -> str:
        """Return the id of the incident of an alert; its own id if it begins one.

        Alerts about the machine or the progress are incidents of their own; a hint (severity info)
        belongs to none, which is an empty id. The alerts of a step that one odd record explains are
        an incident of their own too, because it causes no later ones.

        Args:
            alert: the alert.
            public_id: its id in the journal.
        """
        if alert.severity == INFO:
            return ""
        if alert.kind not in TRAINING_KINDS:
            return public_id
        if alert.explained_by:
            if self._odd[0] != alert.step:
                self._odd = alert.step, public_id
            return self._odd[1]
        if not self._id or abs(alert.step - self._step) > INCIDENT_STEPS:
            self._id = public_id
        self._step = alert.step
        return self._id

    def end(self) -> None:
        """End the present incident; the next alert about the weights begins another."""
        self._id = ""
