"""Incidents: alerts of one cause, under the id of the first of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec

from ..protocol.thresholds import INCIDENT_STEPS, TRAINING_KINDS
from .anomaly import ALARM, INFO, INSTABILITY, Alert

__all__ = ["INCIDENT_STEPS", "Incidents"]

SUDDEN = frozenset({"spike", "grad_explosion", "nonfinite"})
"""Kinds that are detected in the record in which they begin."""


class Incidents(msgspec.Struct, kw_only=True):
    """Gives every alert the id of its incident.

    An incident lasts until all of its alarms have recovered, or until no alert has joined it for
    `INCIDENT_STEPS`. A verdict takes many records; without one, an alarm counts as recovered when
    a new one is raised after its quantity was back at its earlier level. An incident
    continues after a rollback, because an alarm that comes back has the same cause, and after an
    alarm that has not recovered, because no recovery may return to a state after its beginning.
    The names of the fields are part of the file format of checkpoints.
    """

    newest: str = ""
    """Id of the open incident; empty without one."""
    step: int = 0
    """Step of the newest alert of that incident."""
    odd: str = ""
    """Id of the newest alert that one odd record explains; empty without one."""
    odd_step: int = 0
    alarms: list[str] = []
    """Ids of the alarms without a verdict."""
    lasting: bool = False
    """Whether an alarm of the incident has not recovered."""
    newest_of: dict[str, str] = {}
    """Id of the newest incident with an alarm of each kind of instability."""

    def ends(self, alerts: Iterable[Alert], back: Collection[str]) -> bool:
        """Return whether the incident was over before the alerts of a step; if so, end it.

        It was over if the quantities of all of its alarms were back. Later verdicts on them then
        end nothing. Alerts that took many records to show may have begun with it: they join it.

        Args:
            alerts: the new alerts, which have not joined yet.
            back: ids of alarms whose quantity was back before the newest record.
        """
        about_weights = [a for a in alerts if a.kind in TRAINING_KINDS and a.severity != INFO]
        sudden = bool(about_weights) and all(a.kind in SUDDEN for a in about_weights)
        settled = bool(self.alarms) and not self.lasting and all(a in back for a in self.alarms)
        over = sudden and settled
        if over:
            self.newest, self.alarms = "", []
        return over

    def join(self, alert: Alert, public_id: str) -> str:
        """Return the id of the incident of an alert; its own id if it begins one.

        Alerts about the machine or the progress are incidents of their own; a hint (severity info)
        belongs to none, which is an empty id. The alerts of a step that one odd record explains are
        an incident of their own too, because it causes no later ones. One more of the peaks that a
        run has again and again belongs to the newest incident with an alarm of that kind, even if
        it is over.

        Args:
            alert: the alert.
            public_id: its id in the journal.
        """
        if alert.severity == ALARM and alert.id not in self.alarms:
            self.alarms.append(alert.id)
        if alert.again is not None:
            return self.newest_of.get(alert.again.kind, public_id)
        if alert.severity == INFO:
            return ""
        if alert.kind not in TRAINING_KINDS:
            return public_id
        if alert.explained_by:
            if self.odd_step != alert.step:
                self.odd_step, self.odd = alert.step, public_id
            return self.odd
        going = self.at(alert.step)
        self.lasting = self.lasting and bool(going)
        self.newest, self.step = going or public_id, alert.step
        if alert.kind in INSTABILITY:
            self.newest_of = self.newest_of | {alert.kind: self.newest}
        return self.newest

    def at(self, step: int) -> str:
        """Return the id of the incident that an alert about the weights would join; else empty."""
        return self.newest if abs(step - self.step) <= INCIDENT_STEPS else ""

    def judged(self, alert: str, verdict: str) -> bool:
        """Take note of the verdict on an alert; return whether it ends the incident."""
        if alert not in self.alarms:
            return False
        self.alarms.remove(alert)
        self.lasting = self.lasting or verdict != "recovered"
        over = not self.alarms and not self.lasting
        if over:
            self.newest = ""
        return over

    def undone(self, alert: str) -> None:
        """Take note that a rollback has undone an alert, which does not end the incident."""
        if alert in self.alarms:
            self.alarms.remove(alert)

    def or_saved(self, saved: Incidents) -> Incidents:
        """Return what continues after a checkpoint is restored.

        These are the incidents of this process, because a rollback ends none. If it has none, they
        are the saved ones.
        """
        return self if self.newest or self.alarms else saved
