"""Anomaly monitor: runs the detector over finished steps and follows every alert to its verdict."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from ...core.anomaly import ALARM, INSTABILITY, LOCAL, Alert, Detector
from ...core.anomaly.record import detector_record
from ...core.anomaly.state import State
from ...core.autopilot import calls_at_once
from ...core.guard import NOTHING_PASSES, Limits
from ...core.incidents import Incidents
from ...core.meters import LossAverage, RecentNorms
from ...core.recovery import RecoveryForecast
from ...core.reports.row_losses import RowEvidence
from ...data.batches.batch_source import SeenExamples
from ...protocol.events import AnomalyResolved, StepFinished
from ...run.checkpoint_store import Manifest
from ..event_log import EventLog
from .anomaly_reporter import AnomalyReporter
from .step_rows import StepRows

ALERTS_KEPT = 50
FLOW_NORM = 3.0
"""Multiple of the usual gradient norm from which the gradient flow is measured, so that the report
has it if the detector raises an alert."""


class WayBack(NamedTuple):
    """The rollback that the report of an alert recommends."""

    checkpoint: Manifest | None
    """The checkpoint to return to; None if there is no good one."""
    forecast: RecoveryForecast = RecoveryForecast()
    """What `recover` would do."""


FindWayBack = Callable[[Alert], WayBack]


class RecoveryCall(NamedTuple):
    """An anomaly that calls for a recovery."""

    anomaly: str
    """Public id of the anomaly; empty for the newest instability."""
    reason: str


class AnomalyMonitorState(msgspec.Struct, kw_only=True):
    """The monitor's part of a checkpoint; the names of its fields are part of the file format."""

    detector: State
    loss: LossAverage
    norms: RecentNorms
    alerts: list[Alert]
    """The last `ALERTS_KEPT` alerts, oldest first."""
    open: dict[str, str] = {}
    """Alerts without a verdict: id of the alert → public id in the journal and the report."""
    incidents: Incidents = msgspec.field(default_factory=Incidents)


class AnomalyMonitor:
    """Raises alerts from finished steps and evaluations, and resolves them by verdicts.

    Every rank sees the same records and raises the same alerts, except for alerts of the `LOCAL`
    kinds, which concern rank 0's own machine.
    """

    def __init__(
        self,
        detector: Detector,
        event_log: EventLog,
        reporter: AnomalyReporter,
        *,
        leads: bool,
        forgetting_limit: float | None = None,
    ) -> None:
        """Start without alerts.

        Args:
            detector: without any records yet.
            event_log: takes the verdicts.
            reporter: writes and announces a report for every alert.
            leads: whether this is rank 0.
            forgetting_limit: rise of the loss on general texts that is an alarm; None raises none.
        """
        self._event_log = event_log
        self._reporter = reporter
        self._leads = leads
        self._forgetting_limit = forgetting_limit
        self._detector = detector
        self.state = AnomalyMonitorState(
            detector=detector.live_state, loss=LossAverage(), norms=RecentNorms(), alerts=[]
        )
        self._usual: Limits | None = None
        """The limits from the records so far; None until they are computed."""
        self._asked_gradients = ""
        """Why the gradient flow of the next update is measured; empty if it is not."""
        self.ran_model = False
        """Whether the newest step had the model run once more, for the losses of its rows."""

    def restore(self, state: AnomalyMonitorState) -> None:
        """Continue from a checkpoint's state; open alerts and an open incident stay open."""
        state.alerts = state.alerts[-ALERTS_KEPT:]
        state.open = self.state.open | state.open
        state.incidents = self.state.incidents.or_saved(state.incidents)
        self._detector = Detector.over(state.detector)
        self.state = state
        self._usual = None

    def ask_gradients(self) -> None:
        """Request that the gradient flow of the next update is measured."""
        self._asked_gradients = "asked"

    def limits(self) -> Limits:
        """Return the loss and gradient norm up to which the device may apply an update by itself.

        The limits are the same on every rank. Above them the update may become an alarm, so the
        host measures its gradient flow first; no update is within them if that was requested.
        """
        if self._asked_gradients:
            return NOTHING_PASSES
        if self._usual is None:
            self._usual = self._usual_limits()
        return self._usual

    def _usual_limits(self) -> Limits:
        usual = self.state.norms.percentile(95)
        loud = None if usual is None else FLOW_NORM * usual
        return Limits.of(self._detector.usual_up_to(), loud)

    def wants_gradients(self, loss: float, grad_norm: float) -> str:
        """Return why the gradient flow of this update should be measured; empty if it should not.

        A request by `ask_gradients` is answered once. The loss is this rank's share, but the
        gradients are those of all ranks, so it is enough if one rank measures.
        """
        odd = not self.limits().hold(loss, grad_norm)
        asked, self._asked_gradients = self._asked_gradients, ""
        return asked or ("odd" if odd else "")

    def observe(
        self, event: StepFinished, seen: SeenExamples, refused: str, way_back: FindWayBack
    ) -> list[RecoveryCall]:
        """Add a finished step: raise its alerts, resolve earlier ones, return calls for recovery.

        Args:
            event: the finished step.
            seen: the examples that this rank trained on.
            refused: why the guard refused the update; empty if it was applied.
            way_back: finds the way back from an alert, for its report.
        """
        return self.follow(self.take(event), seen, refused, way_back)

    def take(self, event: StepFinished) -> list[Alert]:
        """Add a finished step to detector and meters; return its alerts, not raised yet.

        Nothing else is changed, so another thread may do it. A step without targets says nothing
        about the training, so it is left out.
        """
        if event.without_targets:
            return []
        record = detector_record(event, self._event_log.step, leads=self._leads)
        alerts = self._detector.update(record)
        self.state.loss.push(event.loss_or_nan)
        self.state.norms.push(event.grad_norm, clipped=event.clipped)
        self._usual = self._usual_limits()
        return alerts

    def follow(
        self, alerts: Sequence[Alert], seen: SeenExamples, refused: str, way_back: FindWayBack
    ) -> list[RecoveryCall]:
        """Raise the alerts of a step that `take` has added, and resolve earlier ones.

        Arguments and result are those of `observe`.
        """
        self.ran_model = False
        if not alerts:  # as after nearly every step
            return self._resolve()
        rows = self._look(alerts, seen)
        return self._raise_all(alerts, rows, refused, way_back) + self._resolve()

    def evaluated(self, metrics: Mapping[str, float], way_back: FindWayBack) -> list[RecoveryCall]:
        """Add the metrics of an evaluation: raise its alerts and return calls for recovery."""
        record = {"step": self._event_log.step, "eval_loss": metrics["loss"]}
        if self._forgetting_limit is not None and "forgetting.rise" in metrics:
            record |= {
                "forgetting": metrics["forgetting.rise"],
                "forgetting_limit": self._forgetting_limit,
            }
        alerts = self._detector.update(record)
        self._usual = None
        return self._raise_all(alerts, None, "", way_back)

    def _look(self, alerts: Sequence[Alert], seen: SeenExamples) -> StepRows | None:
        """Return the rows of a step whose alerts concern all ranks; None without such an alert.

        Losses of rows are computed only for alarms of an instability. All ranks have the same such
        alerts, so they gather rows together, and every rank runs the model or none does.
        """
        everyones = [alert for alert in alerts if alert.kind not in LOCAL]
        dangerous = any(a.kind in INSTABILITY and a.severity == ALARM for a in everyones)
        self.ran_model = dangerous and self._reporter.computes_losses
        return self._reporter.look(seen, losses=dangerous) if everyones else None

    def explained(self, step: int) -> bool:
        """Whether a step has alerts of an instability, and odd records explain all of them."""
        here = [a for a in self.state.alerts if a.step == step and a.kind in INSTABILITY]
        return bool(here) and all(alert.explained_by for alert in here)

    def _raise_all(
        self,
        alerts: Sequence[Alert],
        rows: StepRows | None,
        refused: str,
        way_back: FindWayBack,
    ) -> list[RecoveryCall]:
        calls = []
        incidents = self.state.incidents
        # A raised rate stays a cause, however the loss is in between.
        settled = not self._reporter.rate_was_raised(incidents.step)
        if settled and incidents.ends(alerts, self._detector.back_before()):
            self._reporter.calm()
        for alert in alerts:
            own = None if alert.kind in LOCAL else rows
            alert, weighed = self._reporter.weigh(alert, own, self._detector.usual_loss())
            public_id = self._raise(alert, own, weighed, refused, way_back)
            if calls_at_once(alert):
                calls.append(RecoveryCall(public_id, alert.headline))
        return calls

    def _raise(
        self,
        alert: Alert,
        rows: StepRows | None,
        weighed: RowEvidence | None,
        refused: str,
        way_back: FindWayBack,
    ) -> str:
        state = self.state
        public_id = self._reporter.public_id(alert)
        incident = state.incidents.join(alert, public_id)
        alert = msgspec.structs.replace(alert, incident=incident)
        state.alerts = [*state.alerts, alert][-ALERTS_KEPT:]
        found = way_back(alert)
        self._reporter.report(
            alert,
            norms=state.norms,
            way_back=found.checkpoint,
            forecast=found.forecast,
            rows=rows,
            weighed=weighed,
            guard=refused,
        )
        state.open[alert.id] = public_id
        measured = self._reporter.names_modules or self._asked_gradients
        if alert.severity == ALARM and not measured:
            self._asked_gradients = f"after {public_id}"
        return public_id

    def _resolve(self) -> list[RecoveryCall]:
        calls = []
        for verdict in self._detector.take_verdicts():
            public_id = self._close(verdict.id, verdict.verdict)
            if self.state.incidents.judged(verdict.id, verdict.verdict):
                self._reporter.calm()
            if verdict.verdict == "not recovered" and self._endangers(verdict.id):
                calls.append(RecoveryCall(public_id, f"{verdict.id} has not recovered"))
        return calls

    def _endangers(self, alert: str) -> bool:
        """Whether an alert is an instability that no odd record explains."""
        explained = any(a.id == alert and a.explained_by for a in self.state.alerts)
        return alert.rpartition("-")[0] in INSTABILITY and not explained

    def _close(self, alert: str, verdict: str) -> str:
        public_id = self.state.open.pop(alert, alert)
        self._event_log.record(AnomalyResolved(id=public_id, verdict=verdict))
        return public_id

    def rolled_back(self, to_step: int) -> None:
        """Resolve the open alerts of steps that a rollback has undone."""
        for alert in list(self.state.open):
            if _step_of(alert) > to_step:
                self._close(alert, "rolled back")
                self.state.incidents.undone(alert)

    def end(self) -> None:
        """Resolve the open alerts from the steps recorded so far, because the run ends."""
        for verdict in self._detector.last_verdicts():
            self._close(verdict.id, verdict.verdict)


def _step_of(alert: str) -> int:
    return int(alert.rpartition("-")[2])
