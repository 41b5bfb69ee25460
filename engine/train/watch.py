"""What is watched while training: the guard before the update, the detector after it."""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec

from ..config.schema import RunConfig
from ..core.anomaly import ALARM, INFO, LOCAL, Alert, Detector
from ..core.guard import Guard, Verdict
from ..core.meters import Ema, RecentNorms
from ..core.retention import good_checkpoint, is_good
from ..protocol.commands import Rollback
from ..protocol.events import AnomalyResolved, StepFinished
from ..run.layout import RunDirectory
from ..run.ledger import Ledger, Manifest
from .agree import Agreement
from .chronicle import Chronicle
from .reporting import Reporter
from .source import BatchSource

_ALERTS_KEPT = 50
_rollbacks = msgspec.msgpack.Decoder(Rollback)


class Watched(msgspec.Struct, kw_only=True):
    """The part of the training state that remembers how training went."""

    guard: Guard
    detector: dict[str, Any]
    loss: Ema
    norms: RecentNorms
    alerts: list[Alert]
    eval_loss: float | None = None
    best_eval_loss: float | None = None


class Watch:
    """Judges updates, observes steps, raises anomalies; every rank comes to the same result."""

    def __init__(
        self,
        config: RunConfig,
        run: RunDirectory,
        chronicle: Chronicle,
        reporter: Reporter,
        agreement: Agreement,
    ) -> None:
        self._config = config
        self._ledger = Ledger(run)
        self._chronicle = chronicle
        self._reporter = reporter
        self._agreement = agreement
        self._guard = Guard(budget=config.guard.nonfinite_budget)
        self._detector = Detector(config.guard.sensitivity)
        self._loss = Ema()
        self._norms = RecentNorms()
        self._alerts: deque[Alert] = deque(maxlen=_ALERTS_KEPT)
        self._open: dict[str, str] = {}
        """Alerts without a verdict: id of the alert → id it was announced with."""
        self._alarms: set[str] = set()
        """Those of them that are alarms: the incident lasts as long as there are any."""
        self._eval_loss: float | None = None
        self._best_eval_loss: float | None = None
        self._returned_to: set[str] = set()
        """Checkpoints the guard went back to by itself; none is tried twice."""
        self.reason = ""
        """Why the last update was refused."""

    def norm_percentile(self, percent: float) -> float | None:
        """Percentile of recent gradient norms."""
        return self._norms.percentile(percent)

    def judge(self, loss: float, grad_norm: float, policy: str) -> Verdict:
        """What becomes of the update of the step in progress."""
        decision = self._guard.judge(self._chronicle.step() + 1, loss, grad_norm, policy)
        self.reason = decision.reason
        return decision.verdict

    def observe(self, event: StepFinished, source: BatchSource) -> None:
        """Take a finished step in; raise what stands out."""
        alerts = self._detector.update(self._record(event))
        self._loss.push(event.loss)
        self._norms.push(event.grad_norm, clipped=event.clipped)
        for alert in alerts:
            self._raise(alert, source, self.reason if event.skipped else "")
        self._tell_verdicts()

    def _tell_verdicts(self) -> None:
        for verdict in self._detector.take_verdicts():
            public_id = self._open.pop(verdict.id, verdict.id)
            self._chronicle.record(AnomalyResolved(id=public_id, verdict=verdict.verdict))
            if verdict.id in self._alarms:
                self._alarms.remove(verdict.id)
                if not self._alarms:
                    self._reporter.calm()

    def _record(self, event: StepFinished) -> dict[str, Any]:
        """What the detector sees: the same on every rank, but for rank 0's own machine."""
        leads = self._agreement.rank == 0
        return {
            **event.parts,
            **event.extra,
            "step": self._chronicle.step(),
            "loss": event.loss,
            "grad_norm": event.grad_norm,
            "lr": event.lr,
            "epoch": event.epoch,
            "rank_s": event.rank_s,
            "tok_s": event.tokens_per_s if leads else None,
            "mem_allocated": event.mem_allocated_bytes if leads else None,
        }

    def _raise(self, alert: Alert, source: BatchSource | None, guard: str = "") -> None:
        if alert.kind in LOCAL:
            source = None
        self._alerts.append(alert)
        public_id = self._reporter.report(
            alert, norms=self._norms, way_back=self._good(alert), source=source, guard=guard
        )
        self._open[alert.id] = public_id
        if alert.severity == ALARM:
            self._alarms.add(alert.id)

    def rolled_back(self, to_step: int) -> None:
        """Anomalies after the step returned to are history."""
        for ident, public_id in list(self._open.items()):
            if int(ident.rpartition("-")[2]) > to_step:
                del self._open[ident]
                self._alarms.discard(ident)
                self._chronicle.record(AnomalyResolved(id=public_id, verdict="rolled back"))

    def _good(self, alert: Alert) -> Manifest | None:
        """The checkpoint to go back to because of an alert, early warnings considered."""
        near = [a for a in self._alerts if a.severity != INFO and alert.step - a.step <= 50]
        return good_checkpoint(
            self._ledger.all(),
            near or [alert],
            timeline=self._chronicle.timeline,
            exclude=self._returned_to,
        )

    def way_back(self) -> Rollback | None:
        """The guard's own rollback: past the step just refused; the same on every rank."""
        step = self._chronicle.step()
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
        record = {"step": self._chronicle.step(), "eval_loss": loss}
        for alert in self._detector.update(record):
            self._raise(alert, None)

    def checkpoint_facts(self) -> dict[str, Any]:
        """What a checkpoint written now says about itself."""
        good = is_good(
            self._chronicle.step(),
            self._loss.value,
            self._eval_loss,
            self._best_eval_loss,
            self._alerts,
        )
        return {"good": good, "loss": self._loss.value, "eval_loss": self._eval_loss}

    def state(self) -> dict[str, Any]:
        """For the checkpoint."""
        watched = Watched(
            guard=self._guard,
            detector=self._detector.state(),
            loss=self._loss,
            norms=self._norms,
            alerts=list(self._alerts),
            eval_loss=self._eval_loss,
            best_eval_loss=self._best_eval_loss,
        )
        state: dict[str, Any] = msgspec.to_builtins(watched)
        return state

    def restore(self, state: dict[str, Any]) -> None:
        """From a checkpoint: as it was then, but for the guard's count of its own rollbacks."""
        watched = msgspec.convert(state, Watched)
        self._guard = self._guard.rewound(watched.guard)
        self._detector = Detector.from_state(watched.detector)
        self._loss, self._norms = watched.loss, watched.norms
        self._alerts = deque(watched.alerts, maxlen=_ALERTS_KEPT)
        self._eval_loss, self._best_eval_loss = watched.eval_loss, watched.best_eval_loss
