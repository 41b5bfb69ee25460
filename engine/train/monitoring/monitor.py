"""What is watched while training: the guard before the update, the detector after it."""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec

from ...config.schema import RunConfig
from ...config.tasks import JUDGED
from ...core.anomaly import ALARM, INFO, INSTABILITY, LOCAL, Alert, Detector
from ...core.autopilot import Autopilot, calls_at_once
from ...core.guard import NOTHING_PASSES, Guard, Limits, UpdateVerdict
from ...core.meters import LossAverage, RecentNorms
from ...core.model_selection import ModelSelection, describe_stop
from ...core.recovery import (
    NoWayBack,
    RecoveryAttempt,
    RecoveryContext,
    RecoveryHistory,
    plan_recovery,
)
from ...core.retention import good_checkpoint, is_good
from ...core.settings import RunSettings
from ...data.batch_source import SeenExamples
from ...protocol.commands import Recover, Rollback, describe_command
from ...protocol.events import (
    AnomalyResolved,
    AnyEvent,
    AutopilotDecided,
    ProbationEnded,
    RolledBack,
    StepFinished,
)
from ...run.checkpoint_store import CheckpointStore, Manifest
from ...run.run_dir import RunDirectory
from ..distributed.agreement import Agreement
from ..event_log import EventLog
from .anomaly_reporter import AnomalyReporter

_ALERTS_KEPT = 50
_FLOW_NORM = 3.0
"""Times the usual gradient norms: from there the flow is measured in case an alert comes of it."""
_attempts = msgspec.msgpack.Decoder(RecoveryAttempt)
_rollbacks = msgspec.msgpack.Decoder(Rollback)


class MonitorState(msgspec.Struct, kw_only=True):
    """The part of the training state that remembers how training went."""

    guard: Guard
    detector: dict[str, Any]
    loss: LossAverage
    norms: RecentNorms
    alerts: list[Alert]
    open: dict[str, str] = {}
    """Alerts without a verdict: id of the alert → id it was announced with."""
    recoveries: RecoveryHistory = msgspec.field(default_factory=RecoveryHistory)
    autopilot: Autopilot = msgspec.field(default_factory=Autopilot)
    eval_loss: float | None = None
    best_eval_loss: float | None = None
    judgement: ModelSelection = msgspec.field(default_factory=ModelSelection)


class AnomalyMonitor:
    """Judges updates, observes steps, raises anomalies; every rank comes to the same result."""

    def __init__(
        self,
        config: RunConfig,
        run: RunDirectory,
        event_log: EventLog,
        reporter: AnomalyReporter,
        agreement: Agreement,
    ) -> None:
        self._config = config
        self._ledger = CheckpointStore(run)
        self._event_log = event_log
        self._reporter = reporter
        self._agreement = agreement
        self._guard = Guard(budget=config.guard.nonfinite_budget)
        judged = config.task in JUDGED
        self._detector = Detector(config.guard.sensitivity, falls_to_zero=judged)
        self._loss = LossAverage()
        self._norms = RecentNorms()
        self._alerts: deque[Alert] = deque(maxlen=_ALERTS_KEPT)
        self._open: dict[str, str] = {}
        """Alerts without a verdict: id of the alert → id it was announced with."""
        self._alarms: set[str] = set()
        """Those of them that are alarms: the incident lasts as long as there are any."""
        self._eval_loss: float | None = None
        self._best_eval_loss: float | None = None
        self._judgement = ModelSelection()
        self._returned_to: set[str] = set()
        """Checkpoints the guard went back to by itself; none is tried twice."""
        self.reason = ""
        """Why the last update was refused."""
        policy = config.policy
        self._recoveries = RecoveryHistory()
        self._autopilot = Autopilot(budget=policy.budget, cooldown=policy.cooldown)
        self._wanted: tuple[str, str] | None = None
        """Anomaly to recover from and why, until the autopilot has looked at it."""
        self._attempt: RecoveryAttempt | None = None
        """A recovery on its way to its checkpoint."""
        self._asked_gradients = ""
        """Why the next update is to be measured; empty when it is not."""
        self._begun = False
        event_log.listen(self._hear)

    def norm_percentile(self, percent: float) -> float | None:
        """Percentile of recent gradient norms."""
        return self._norms.percentile(percent)

    def judge(self, step: int, loss: float, grad_norm: float, policy: str) -> UpdateVerdict:
        """What becomes of the update of a step."""
        decision = self._guard.judge(step, loss, grad_norm, policy)
        self.reason = decision.reason
        if decision.verdict is UpdateVerdict.HALT:
            self._wanted = ("", decision.reason)
        return decision.verdict

    def ask_gradients(self) -> None:
        """Measure the gradient flow of the next update."""
        self._asked_gradients = "asked"

    def limits(self) -> Limits:
        """Of an update that needs no look before it is made; the same on every rank.

        Of what may become an alarm the flow is measured before anybody knows.
        """
        if self._asked_gradients:
            return NOTHING_PASSES
        usual = self._norms.percentile(95)
        loud = None if usual is None else _FLOW_NORM * usual
        return Limits.of(self._detector.usual_up_to(), loud)

    def wants_gradients(self, loss: float, grad_norm: float) -> str:
        """Why the flow of the update at hand is to be measured; empty when it is not.

        The loss is this rank's share only, but the gradients are those of all, so one rank that
        measures is enough.
        """
        odd = not self.limits().hold(loss, grad_norm)
        asked, self._asked_gradients = self._asked_gradients, ""
        return asked or ("odd" if odd else "")

    def observe(self, event: StepFinished, seen: SeenExamples) -> None:
        """Take a finished step in, trained on these examples; raise what stands out."""
        self._begun = True
        self._autopilot.step()
        alerts = self._detector.update(self._record(event))
        self._loss.push(event.loss)
        self._norms.push(event.grad_norm, clipped=event.clipped)
        for alert in alerts:
            self._raise(alert, seen, self.reason if event.skipped else "")
        self._tell_verdicts()
        self._judge_probation()

    def _tell_verdicts(self) -> None:
        for verdict in self._detector.take_verdicts():
            public_id = self._open.pop(verdict.id, verdict.id)
            self._event_log.record(AnomalyResolved(id=public_id, verdict=verdict.verdict))
            if verdict.id in self._alarms:
                self._alarms.remove(verdict.id)
                if not self._alarms:
                    self._reporter.calm()
            if verdict.verdict == "not recovered" and _is_grave(verdict.id):
                self._wanted = (public_id, f"{verdict.id} has not recovered")

    def _record(self, event: StepFinished) -> dict[str, Any]:
        """What the detector sees: the same on every rank, but for rank 0's own machine."""
        leads = self._agreement.rank == 0
        return {
            **event.parts,
            **event.extra,
            "step": self._event_log.step(),
            "loss": event.loss,
            "grad_norm": event.grad_norm,
            "lr": event.lr,
            "epoch": event.epoch,
            "rank_s": event.rank_s,
            "tok_s": event.tokens_per_s if leads else None,
            "mem_allocated": event.mem_allocated_bytes if leads else None,
            "rank_mem": event.rank_mem_bytes,
        }

    def _raise(self, alert: Alert, seen: SeenExamples | None, guard: str = "") -> None:
        if alert.kind in LOCAL:
            seen = None
        self._alerts.append(alert)
        public_id = self._reporter.report(
            alert, norms=self._norms, way_back=self._good(alert), seen=seen, guard=guard
        )
        self._open[alert.id] = public_id
        if alert.severity == ALARM:
            self._alarms.add(alert.id)
            if not (self._reporter.names_modules or self._asked_gradients):
                self._asked_gradients = f"after {public_id}"
        if calls_at_once(alert):
            self._wanted = (public_id, alert.headline)

    def rolled_back(self, to_step: int) -> None:
        """Anomalies after the step returned to are history."""
        for ident, public_id in list(self._open.items()):
            if int(ident.rpartition("-")[2]) > to_step:
                del self._open[ident]
                self._alarms.discard(ident)
                self._event_log.record(AnomalyResolved(id=public_id, verdict="rolled back"))

    def end(self) -> None:
        """The run ends: judge what still waits for its verdict by what there is."""
        for verdict in self._detector.last_verdicts():
            public_id = self._open.pop(verdict.id, verdict.id)
            self._event_log.record(AnomalyResolved(id=public_id, verdict=verdict.verdict))

    def _hear(self, event: AnyEvent) -> None:
        if isinstance(event, RolledBack):
            self._recoveries.went_back(event.to_step, event.skipped_batches)
            if self._attempt and self._attempt.checkpoint == event.checkpoint:
                self._recoveries.begin(self._attempt, self._config.policy.probation)
            self._attempt = None

    def recovery(self, anomaly: str, desired: RunSettings) -> Rollback:
        """The rollback that recovers from an anomaly; the same on every rank.

        Raises:
            NoWayBack: with the reason.
        """
        refused, found = "", None
        if self._agreement.rank == 0:
            try:
                found = self._plan(anomaly, desired)
            except NoWayBack as reason:
                refused = str(reason)
        attempt = self._agreement.share(b"" if found is None else msgspec.msgpack.encode(found))
        if not attempt:
            raise NoWayBack(self._agreement.share(refused.encode()).decode())
        agreed = _attempts.decode(attempt)
        self._attempt = agreed
        return Rollback(
            checkpoint=agreed.checkpoint,
            lr_scale=agreed.lr_scale,
            clip=agreed.clip,
            skip=agreed.skip,
        )

    def _plan(self, anomaly: str, desired: RunSettings) -> RecoveryAttempt:
        known = [a for a in self._alerts if a.kind in INSTABILITY and a.severity != INFO]
        if anomaly:
            known = [a for a in known if anomaly in (a.id, self._open.get(a.id))]
        if not known:
            which = f"anomaly {anomaly!r}" if anomaly else "spike, divergence or explosion"
            raise NoWayBack(
                f"there was no {which} on this timeline to recover from; "
                "to go back all the same: rollback CHECKPOINT"
            )
        manifests = self._ledger.all()
        return plan_recovery(
            known[-1],
            self._alerts,
            manifests,
            self._recoveries,
            RecoveryContext(
                step=self._event_log.step(),
                timeline=self._event_log.timeline,
                lr_scale=desired.lr_scale,
                lr_scales=_lr_scales(manifests),
                clip=desired.clip,
                norm_high=self._norms.percentile(95),
                refused_at=self._guard.skipped_at[-1] if self._guard.skipped_at else 0,
            ),
        )

    def _judge_probation(self) -> None:
        probation, step = self._recoveries.probation, self._event_log.step()
        if probation is None:
            return
        since = [
            a
            for a in self._alerts
            if a.step > probation.attempt.step and a.severity == ALARM and a.kind in INSTABILITY
        ]
        if not since and step < probation.until_step:
            return
        reason = since[0].headline if since else "no alarm, and the loss is finite"
        self._event_log.record(
            ProbationEnded(
                anomaly=probation.attempt.anomaly,
                checkpoint=probation.attempt.checkpoint,
                passed=not since,
                reason=reason,
                steps=step - probation.attempt.step,
            )
        )
        self._recoveries.probation = None
        if since:
            self._wanted = (since[0].id, f"the recovery did not hold: {reason}")
        else:
            self._recoveries.over()

    def wanted(self, mode: str) -> tuple[Recover, str] | None:
        """What the autopilot wants done now, and why; journaled. The same on every rank."""
        wanted, self._wanted = self._wanted, None
        if wanted is None or mode == "off":
            return None
        anomaly, why = wanted
        decision = self._autopilot.decide(mode, why)
        command = Recover(anomaly=anomaly)
        self._event_log.record(
            AutopilotDecided(
                anomaly=anomaly,
                decision=decision.verdict,
                command=describe_command(command),
                reason=decision.reason,
                budget_left=decision.budget_left,
            )
        )
        return (command, decision.reason) if decision.verdict == "act" else None

    def _good(self, alert: Alert) -> Manifest | None:
        """The checkpoint to go back to because of an alert, early warnings considered."""
        near = [a for a in self._alerts if a.severity != INFO and alert.step - a.step <= 50]
        return good_checkpoint(
            self._ledger.all(),
            near or [alert],
            timeline=self._event_log.timeline,
            exclude=self._returned_to,
        )

    def way_back(self) -> Rollback | None:
        """The guard's own rollback: past the step just refused; the same on every rank."""
        step = self._event_log.step()
        alert = Alert(id="guard", kind="nonfinite", severity=ALARM, step=step, headline="")
        found = self._good(alert) if self._agreement.rank == 0 else None
        wanted = Rollback(checkpoint=found.name, skip=step - found.step) if found else None
        if found:
            self._returned_to.add(found.name)
        shared = self._agreement.share(msgspec.msgpack.encode(wanted) if wanted else b"")
        return _rollbacks.decode(shared) if shared else None

    def evaluated(self, metrics: dict[str, float]) -> None:
        """Take an evaluation in."""
        loss = metrics["loss"]
        self._eval_loss = loss
        best = self._best_eval_loss
        self._best_eval_loss = loss if best is None else min(best, loss)
        record = {"step": self._event_log.step(), "eval_loss": loss}
        for alert in self._detector.update(record):
            self._raise(alert, None)
        self._judge_metrics(metrics)

    def _judge_metrics(self, metrics: dict[str, float]) -> None:
        step, stop = self._event_log.step(), self._config.train.early_stop
        if not self._judgement.push(step, metrics):
            return
        if (by := self._config.checkpoint.best) in metrics:
            self._judgement.best.push(by, step, metrics[by])
        if stop and stop.metric in metrics:
            value = metrics[stop.metric]
            self._judgement.stopping.push(stop.metric, step, value, stop.min_delta)

    def is_best(self) -> bool:
        """The evaluation at this step is the best so far by `checkpoint.best`."""
        return self._judgement.is_best(self._event_log.step())

    def reason_to_stop(self) -> str | None:
        """Why early stopping ends the run here; None to go on."""
        stop, record = self._config.train.early_stop, self._judgement.stopping
        if stop is None or record.waited < stop.patience:
            return None
        return describe_stop(stop.metric, record, stop.min_delta)

    def checkpoint_facts(self) -> dict[str, Any]:
        """What a checkpoint written now says about itself."""
        good = is_good(
            self._event_log.step(),
            self._loss.value,
            self._eval_loss,
            self._best_eval_loss,
            self._alerts,
        )
        metrics = self._judgement.at(self._event_log.step())
        known = {"loss": self._loss.value, "eval_loss": self._eval_loss}
        return {"good": good, "metrics": metrics, **known}

    def state(self) -> dict[str, Any]:
        """For the checkpoint."""
        watched = MonitorState(
            guard=self._guard,
            detector=self._detector.state(),
            loss=self._loss,
            norms=self._norms,
            alerts=list(self._alerts),
            open=self._open,
            recoveries=self._recoveries,
            autopilot=self._autopilot,
            eval_loss=self._eval_loss,
            best_eval_loss=self._best_eval_loss,
            judgement=self._judgement,
        )
        state: dict[str, Any] = msgspec.to_builtins(watched)
        return state

    def restore(self, state: dict[str, Any]) -> None:
        """From a checkpoint: as it was then, but for what was tried to come out of trouble."""
        watched = msgspec.convert(state, MonitorState)
        self._guard = self._guard.rewound(watched.guard)
        self._detector = Detector.from_state(watched.detector)
        self._loss, self._norms = watched.loss, watched.norms
        self._alerts = deque(watched.alerts, maxlen=_ALERTS_KEPT)
        self._open |= watched.open
        self._eval_loss, self._best_eval_loss = watched.eval_loss, watched.best_eval_loss
        self._judgement = watched.judgement
        if not self._begun:
            self._recoveries, self._autopilot = watched.recoveries, watched.autopilot
        self._wanted = None


def _lr_scales(manifests: list[Manifest]) -> dict[str, float]:
    found = {m.name: m.control.get("lr_scale") for m in manifests}
    return {name: float(scale) for name, scale in found.items() if isinstance(scale, int | float)}


def _is_grave(alert: str) -> bool:
    return alert.rpartition("-")[0] in INSTABILITY
