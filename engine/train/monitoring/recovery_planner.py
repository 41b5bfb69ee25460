"""Recovery planner: plans rollbacks for anomalies, runs the autopilot, follows the probation."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ...config.schema import PolicyConfig
from ...core.anomaly import ALARM, INSTABILITY, Alert
from ...core.autopilot import Autopilot
from ...core.recovery import (
    RECOVERABLE,
    NoWayBack,
    Probation,
    RecoveryAttempt,
    RecoveryContext,
    RecoveryForecast,
    RecoveryHistory,
    anomaly_named,
    incident,
    plan_recovery,
)
from ...core.retention import good_checkpoint
from ...protocol.commands import Recover, Rollback, describe_command
from ...protocol.events import AnyEvent, AutopilotDecided, ProbationEnded, RolledBack
from ...protocol.settings import RunSettings
from ...run.checkpoint_store import CheckpointStore, Manifest
from ..distributed.agreement import Agreement
from ..event_log import EventLog
from .anomaly_monitor import AnomalyMonitorState, RecoveryCall, WayBack

_attempts = msgspec.msgpack.Decoder(RecoveryAttempt)
_rollbacks = msgspec.msgpack.Decoder(Rollback)


class RecoveryPlannerState(msgspec.Struct, kw_only=True):
    """The planner's part of a checkpoint; the names of its fields are part of the file format."""

    recoveries: RecoveryHistory = msgspec.field(default_factory=RecoveryHistory)
    autopilot: Autopilot = msgspec.field(default_factory=Autopilot)


class RecoveryPlanner:
    """Plans rollbacks on rank 0 and shares them, so that every rank has the same result."""

    def __init__(
        self,
        policy: PolicyConfig,
        checkpoints: CheckpointStore,
        event_log: EventLog,
        agreement: Agreement,
    ) -> None:
        self._policy = policy
        self._checkpoints = checkpoints
        self._event_log = event_log
        self._agreement = agreement
        self.state = RecoveryPlannerState(
            autopilot=Autopilot(budget=policy.budget, cooldown=policy.cooldown)
        )
        self._called: RecoveryCall | None = None
        """The newest call for a recovery that the autopilot has not decided on."""
        self._attempt: RecoveryAttempt | None = None
        """The planned recovery whose rollback has not been made yet."""
        self._returned_to: set[str] = set()
        """Checkpoints that the guard has returned to by itself; none is tried twice."""
        self._trained = False
        """Whether this process has trained a step."""
        event_log.listen(self._follow_rollback)

    def restore(self, state: RecoveryPlannerState) -> None:
        """Take recoveries and the autopilot's budget from a checkpoint, unless steps were trained.

        After a rollback within this process they stay as they are, because the checkpoint does not
        know what was tried since it was written.
        """
        if not self._trained:
            self.state = state
        self._called = None

    def stepped(self) -> None:
        """Count a finished training step."""
        self._trained = True
        self.state.autopilot.step()

    def call(self, call: RecoveryCall) -> None:
        """Note a call for a recovery; it replaces an earlier one that was not decided on."""
        self._called = call

    def wanted(self, mode: str) -> tuple[Recover, str] | None:
        """Return the autopilot's recovery with its reason, or None; journal the decision.

        The newest call is decided on and forgotten; without one nothing is journaled.

        Args:
            mode: off, propose or act.
        """
        called, self._called = self._called, None
        if called is None or mode == "off":
            return None
        decision = self.state.autopilot.decide(mode, called.reason)
        command = Recover(anomaly=called.anomaly)
        self._event_log.record(
            AutopilotDecided(
                anomaly=called.anomaly,
                decision=decision.verdict,
                command=describe_command(command),
                reason=decision.reason,
                budget_left=decision.budget_left,
            )
        )
        return (command, decision.reason) if decision.verdict == "act" else None

    def good_checkpoint(self, alert: Alert, alerts: Sequence[Alert]) -> Manifest | None:
        """Return the newest good checkpoint before the incident of an alert, or None.

        Checkpoints that the guard has returned to by itself are left out.
        """
        return good_checkpoint(
            self._checkpoints.all(),
            incident(alerts, alert),
            timeline=self._event_log.timeline,
            exclude=self._returned_to,
        )

    def way_back(self, seen: AnomalyMonitorState) -> Rollback | None:
        """Return the guard's own rollback past the step just refused, or None if there is none.

        All ranks call this together and return rank 0's rollback.

        Args:
            seen: alerts and incidents of the anomaly monitor.
        """
        wanted = self._plan_way_back(seen) if self._agreement.rank == 0 else None
        shared = self._agreement.share(msgspec.msgpack.encode(wanted) if wanted else b"")
        return _rollbacks.decode(shared) if shared else None

    def _plan_way_back(self, seen: AnomalyMonitorState) -> Rollback | None:
        step = self._event_log.step
        refused = Alert(
            id="guard",
            kind="nonfinite",
            severity=ALARM,
            step=step,
            headline="",
            incident=seen.incidents.at(step),
        )
        found = self.good_checkpoint(refused, seen.alerts)
        if found is None:
            return None
        self._returned_to.add(found.name)
        return Rollback(checkpoint=found.name, skip=step - found.step)

    def recovery(
        self, anomaly: str, settings: RunSettings, seen: AnomalyMonitorState, refused_at: int
    ) -> Rollback:
        """Return the rollback that recovers from an anomaly.

        All ranks call this together; they return rank 0's rollback, or raise with rank 0's reason.

        Args:
            anomaly: id or public id of the anomaly; empty for the newest instability.
            settings: the settings in force.
            seen: alerts and gradient norms of the anomaly monitor.
            refused_at: last step whose update the guard refused; 0 if there is none.

        Raises:
            NoWayBack: no recovery is possible; the message names the reason.
        """
        refused, found = "", None
        if self._agreement.rank == 0:
            try:
                named = anomaly_named(seen.alerts, anomaly, seen.open)
                found = self._plan(named, settings, seen, refused_at)
            except NoWayBack as reason:
                refused = str(reason)
        shared = self._agreement.share(b"" if found is None else msgspec.msgpack.encode(found))
        if not shared:
            raise NoWayBack(self._agreement.share(refused.encode()).decode())
        attempt = self._attempt = _attempts.decode(shared)
        return attempt.rollback()

    def forecast(
        self, alert: Alert, settings: RunSettings, seen: AnomalyMonitorState, refused_at: int
    ) -> WayBack:
        """Return what `recover` would do about an alert now.

        The other arguments are those of `recovery`. One rank may call this alone.
        """
        if alert.kind not in RECOVERABLE or alert.explained_by:
            return self.without_recovery(alert, seen)
        tried = len(self.state.recoveries.attempts)
        try:
            attempt = self._plan(alert, settings, seen, refused_at)
        except NoWayBack as reason:
            forecast = RecoveryForecast(refused=str(reason), tried=tried)
            return WayBack(self.good_checkpoint(alert, seen.alerts), forecast)
        known = (m for m in self._checkpoints.all() if m.name == attempt.checkpoint)
        return WayBack(next(known, None), RecoveryForecast(attempt=attempt, tried=tried))

    def without_recovery(self, alert: Alert, seen: AnomalyMonitorState) -> WayBack:
        """Return only the newest good checkpoint, for an alert that `recover` does not handle."""
        return WayBack(self.good_checkpoint(alert, seen.alerts))

    def _plan(
        self, anomaly: Alert, settings: RunSettings, seen: AnomalyMonitorState, refused_at: int
    ) -> RecoveryAttempt:
        manifests = self._checkpoints.all()
        return plan_recovery(
            anomaly,
            seen.alerts,
            manifests,
            self.state.recoveries,
            RecoveryContext(
                step=self._event_log.step,
                timeline=self._event_log.timeline,
                lr_scale=settings.lr_scale,
                lr_scales=_lr_scales(manifests),
                clip=settings.clip,
                norm_high=seen.norms.percentile(95),
                refused_at=refused_at,
            ),
        )

    def _follow_rollback(self, event: AnyEvent) -> None:
        if not isinstance(event, RolledBack):
            return
        self.state.recoveries.went_back(event.to_step, event.skipped_batches)
        if self._attempt and self._attempt.checkpoint == event.checkpoint:
            self.state.recoveries.begin(self._attempt, self._policy.probation)
        self._attempt = None

    def judge_probation(self, alerts: Sequence[Alert]) -> None:
        """End the probation of a recovery if it has failed or passed.

        It fails at the first instability alarm after the recovery, which calls for another
        recovery. It passes when its steps are over; the incident then ends, too.

        Args:
            alerts: recent alerts, oldest first.
        """
        probation, step = self.state.recoveries.probation, self._event_log.step
        if probation is None:
            return
        failed = next((a for a in alerts if _fails(a, probation)), None)
        if failed is None and step < probation.until_step:
            return
        reason = failed.headline if failed else "no alarm, and the loss is finite"
        self._event_log.record(
            ProbationEnded(
                anomaly=probation.attempt.anomaly,
                checkpoint=probation.attempt.checkpoint,
                passed=failed is None,
                reason=reason,
                steps=step - probation.attempt.step,
            )
        )
        self.state.recoveries.probation = None
        if failed:
            self.call(RecoveryCall(failed.id, f"the recovery failed: {reason}"))
        else:
            self.state.recoveries.over()


def _fails(alert: Alert, probation: Probation) -> bool:
    after = alert.step > probation.attempt.step
    return after and alert.severity == ALARM and alert.kind in INSTABILITY


def _lr_scales(manifests: Sequence[Manifest]) -> dict[str, float]:
    found = {m.name: m.control.get("lr_scale") for m in manifests}
    return {name: float(scale) for name, scale in found.items() if isinstance(scale, int | float)}
