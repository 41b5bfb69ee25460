"""Training monitor: guard, anomaly monitor, recovery planner and model selection as one object."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec

from ...config.schema import BenchmarksConfig, RunConfig
from ...config.tasks import COMPARING_TASKS
from ...core.anomaly import Alert, Detector
from ...core.guard import Guard, GuardDecision, Limits, UpdateVerdict
from ...core.model_selection import ModelSelection, ModelSelectionState
from ...core.retention import is_good
from ...data.batches.batch_source import SeenExamples
from ...protocol.benchmarks.result import BenchmarkFinished
from ...protocol.commands import AddNote, Recover, Rollback
from ...protocol.events import NoteAdded, StepFinished
from ...protocol.settings import RunSettings
from ...run.checkpoint_store import CheckpointStore
from ..distributed.agreement import Agreement
from ..event_log import EventLog
from .anomaly_monitor import AnomalyMonitor, AnomalyMonitorState, RecoveryCall
from .anomaly_reporter import AnomalyReporter
from .recovery_planner import RecoveryPlanner, RecoveryPlannerState

_OTHERWISE = "eval.benchmarks has another limit or other prompts"


class TrainingMonitor:
    """Checks updates before they are made and steps after them, and plans recoveries.

    Every rank calls the same methods in the same order and gets the same results. The parts do not
    know each other; their common order is here.
    """

    def __init__(
        self,
        guard: Guard,
        anomalies: AnomalyMonitor,
        planner: RecoveryPlanner,
        selection: ModelSelection,
        event_log: EventLog,
        checkpoints: CheckpointStore | None = None,
        benchmarks: BenchmarksConfig = BenchmarksConfig(),  # noqa: B008 - frozen
    ) -> None:
        """Keep the parts; only rank 0 has the store of checkpoints."""
        self._checkpoints = checkpoints
        self._benchmarks = benchmarks
        self._guard = guard
        self._anomalies = anomalies
        self._planner = planner
        self._selection = selection
        self._event_log = event_log

    def norm_percentile(self, percent: float) -> float | None:
        """Return a percentile of the recent gradient norms; None without any."""
        return self._anomalies.state.norms.percentile(percent)

    def ask_gradients(self) -> None:
        """Request that the gradient flow of the next update is measured."""
        self._anomalies.ask_gradients()

    def limits(self) -> Limits:
        """Return the loss and gradient norm up to which the device may apply an update."""
        return self._anomalies.limits()

    def wants_gradients(self, loss: float, grad_norm: float) -> str:
        """Return why the gradient flow of this update should be measured; empty if not."""
        return self._anomalies.wants_gradients(loss, grad_norm)

    def judge(self, step: int, loss: float, grad_norm: float, nonfinite: str) -> GuardDecision:
        """Return the guard's decision on the update of a step; a halt calls for a recovery.

        The autopilot decides later on that call (see `wanted`).

        Args:
            step: number of the step.
            loss: this rank's share of the loss.
            grad_norm: gradient norm over all ranks, before clipping.
            nonfinite: what to do with an update that is not finite: skip, halt or rollback.
        """
        decision = self._guard.judge(step, loss, grad_norm, nonfinite)
        if decision.verdict is UpdateVerdict.HALT:
            self._planner.call(RecoveryCall("", decision.reason))
        return decision

    def observe(
        self, event: StepFinished, seen: SeenExamples, settings: RunSettings, refused: str = ""
    ) -> bool:
        """Add a finished step; raise and resolve anomalies.

        Return whether the model was run once more, for the losses of the rows of an alert: a step
        in progress then has to be dropped.

        Args:
            event: the finished step.
            seen: the examples that this rank trained on.
            settings: the settings in force.
            refused: why the guard refused the update of the step; empty if it was applied.
        """
        return self.follow(self.take(event), seen, settings, refused)

    def take(self, event: StepFinished) -> list[Alert]:
        """Add a finished step to the detector and return its alerts, which `follow` is to raise.

        It may run on another thread, as long as nothing else of the monitor is used meanwhile.
        """
        return self._anomalies.take(event)

    def follow(
        self, alerts: list[Alert], seen: SeenExamples, settings: RunSettings, refused: str = ""
    ) -> bool:
        """Raise the alerts of a step that `take` has added, and resolve earlier ones.

        Return whether the model was run. The other arguments are those of `observe`.
        """
        self._planner.stepped()
        way_back = partial(
            self._planner.forecast,
            settings=settings,
            seen=self._anomalies.state,
            refused_at=self._guard.refused_at,
        )
        for call in self._anomalies.follow(alerts, seen, refused, way_back):
            self._planner.call(call)
        self._planner.judge_probation(self._anomalies.state.alerts)
        return self._anomalies.ran_model

    def spares_rollback(self, step: int) -> bool:
        """Cancel the guard's rollback for a step if one odd record explains it.

        Return whether the refused update is skipped instead, within the guard's budget.
        """
        return self._anomalies.explained(step) and self._guard.spares(step)

    def evaluated(self, metrics: dict[str, float]) -> None:
        """Add an evaluation to model selection and detector; raise its anomalies.

        `metrics` must contain `loss`.
        """
        self._selection.evaluated(self._event_log.step, metrics)
        way_back = partial(self._planner.without_recovery, seen=self._anomalies.state)
        for call in self._anomalies.evaluated(metrics, way_back):
            self._planner.call(call)

    def noted(self, note: AddNote, issuer: str) -> str:
        """Journal a note, or the result of a benchmark that was measured beside the training.

        A result joins the metrics of its checkpoint. The steps of a variant follow
        its note. Return what became of it, in words.
        """
        if (result := note.result) is None:
            if note.text:  # further notes with steps of one variant have none
                self._event_log.record(NoteAdded(text=note.text, issuer=issuer))
            for step in note.steps:
                self._event_log.record(step)
            count = len(note.steps)
            return f"recorded {count} step{'s' * (count > 1)}" if count else ""
        self._event_log.record(BenchmarkFinished(result=result))
        if not self._benchmarks.decides_by(result):
            why = f"; it chooses no checkpoint: {_OTHERWISE}" if self._benchmarks.tasks else ""
            return f"recorded at step {result.step}{why}"
        self._selection.benchmarked(result.step, result.metrics)
        if self._checkpoints is not None:
            try:
                self._checkpoints.add_metrics(result.checkpoint, result.metrics)
            except OSError as error:
                text = f"{result.task} does not join the manifest of {result.checkpoint}: {error}"
                self._event_log.log("warning", text)
        return f"recorded at step {result.step}"

    def wanted(self, mode: str) -> tuple[Recover, str] | None:
        """Return the recovery that the autopilot makes now, with its reason; None without one.

        The decision is journaled if a recovery was called for.

        Args:
            mode: the policy of the autopilot: off, propose or act.
        """
        return self._planner.wanted(mode)

    def way_back(self) -> Rollback | None:
        """Return the rollback past a refused step, or None if there is no good checkpoint.

        All ranks call this together.
        """
        return self._planner.way_back(self._anomalies.state)

    def recovery(self, anomaly: str, settings: RunSettings) -> Rollback:
        """Return the rollback that recovers from an anomaly; all ranks call this together.

        Raises:
            NoWayBack: no recovery is possible; the message names the reason.
        """
        refused_at = self._guard.refused_at
        return self._planner.recovery(anomaly, settings, self._anomalies.state, refused_at)

    def rolled_back(self, to_step: int) -> None:
        """Resolve the anomalies of steps that a rollback has undone."""
        self._anomalies.rolled_back(to_step)

    def is_best(self) -> bool:
        """Whether this step was evaluated and is the best so far by `checkpoint.best`."""
        return self._selection.is_best(self._event_log.step)

    def reason_to_stop(self) -> str | None:
        """Return why early stopping ends the run at this step, or None to continue."""
        return self._selection.reason_to_stop()

    @property
    def metrics_here(self) -> dict[str, float]:
        """The metrics of the evaluation at this step; empty if there was none."""
        return self._selection.metrics_at(self._event_log.step)

    def checkpoint_facts(self) -> dict[str, Any]:
        """Return the manifest fields that say how good a checkpoint written now would be."""
        step, seen, selected = self._event_log.step, self._anomalies.state, self._selection.state
        loss, eval_loss = seen.loss.value, selected.eval_loss
        return {
            "good": is_good(step, loss, eval_loss, selected.best_eval_loss, seen.alerts),
            "metrics": self._selection.metrics_at(step),
            "loss": loss,
            "eval_loss": eval_loss,
        }

    def state(self) -> dict[str, Any]:
        """Return the state of all parts as plain values, for the field `watch` of a checkpoint."""
        parts = (self._anomalies.state, self._planner.state, self._selection.state)
        state: dict[str, Any] = {"guard": msgspec.to_builtins(self._guard)}
        for part in parts:
            state |= msgspec.to_builtins(part)
        return state

    def restore(self, state: dict[str, Any]) -> None:
        """Return every part to its state in a checkpoint.

        Once this process has trained a step, the record of recoveries stays as it is.

        Raises:
            msgspec.ValidationError: the state is not one of a monitor; nothing was changed.
        """
        guard = msgspec.convert(state.get("guard"), Guard)
        anomalies = msgspec.convert(state, AnomalyMonitorState)
        recoveries = msgspec.convert(state, RecoveryPlannerState)
        selected = msgspec.convert(state, ModelSelectionState)
        self._guard = self._guard.rewound(guard)
        self._anomalies.restore(anomalies)
        self._planner.restore(recoveries)
        self._selection.restore(selected)

    def end(self) -> None:
        """Resolve the open anomalies because the run ends."""
        self._anomalies.end()


def build_monitor(
    config: RunConfig,
    checkpoints: CheckpointStore,
    event_log: EventLog,
    reporter: AnomalyReporter,
    agreement: Agreement,
    *,
    refuses: bool = True,
) -> TrainingMonitor:
    """Build the monitor of a run from its configuration.

    Args:
        config: the configuration.
        checkpoints: the checkpoints of the run.
        event_log: records what the monitor finds.
        reporter: writes the reports of alerts.
        agreement: agreement of the ranks.
        refuses: whether the guard can refuse an update before it is applied.
    """
    planner = RecoveryPlanner(config.policy, checkpoints, event_log, agreement)
    detector = Detector(
        config.guard.sensitivity,
        falls_to_zero=config.task in COMPARING_TASKS,
        false_alarms=config.guard.false_alarms_per_10k_steps,
    )
    anomalies = AnomalyMonitor(
        detector,
        event_log,
        reporter,
        leads=agreement.rank == 0,
        forgetting_limit=config.forgetting.alarm,
    )
    selection = ModelSelection(config.checkpoint.best, config.train.early_stop)
    guard = Guard(budget=config.guard.nonfinite_budget, refuses=refuses)
    store = checkpoints if agreement.rank == 0 else None
    benchmarks = config.eval.benchmarks
    return TrainingMonitor(guard, anomalies, planner, selection, event_log, store, benchmarks)
