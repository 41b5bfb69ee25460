"""Model selection: the best evaluation so far, and when early stopping ends a run."""

from __future__ import annotations

import math
from typing import Protocol

import msgspec

from ..protocol.thresholds import lower_is_better


class StopRule(Protocol):
    """The early-stopping settings of a configuration."""

    @property
    def metric(self) -> str:
        """Name of the evaluation metric that has to improve."""

    @property
    def patience(self) -> int:
        """Number of evaluations without an improvement after which the run ends."""

    @property
    def min_delta(self) -> float:
        """A metric must improve by more than this; a smaller change does not count."""


def is_better(metric: str, value: float, than: float, by: float = 0.0) -> bool:
    """Whether `value` of a metric is better than `than` by more than `by`; NaN is never better."""
    gain = than - value if lower_is_better(metric) else value - than
    return gain > by


class BestMetric(msgspec.Struct, kw_only=True):
    """The best value of one metric so far."""

    value: float | None = None
    """The best finite value; None before the first one."""
    step: int = 0
    """Step of the best value."""
    waited: int = 0
    """Evaluations since the best value."""

    def push(self, metric: str, step: int, value: float, by: float = 0.0) -> bool:
        """Add a value; return whether it is better than the best so far by more than `by`.

        The first finite value is the best so far; one that is not finite never is.
        """
        improved = math.isfinite(value) and (
            self.value is None or is_better(metric, value, self.value, by)
        )
        if improved:
            self.value, self.step, self.waited = value, step, 0
        else:
            self.waited += 1
        return improved


class EvaluationHistory(msgspec.Struct, kw_only=True):
    """The last evaluation, and the best metrics for model selection and for early stopping."""

    step: int = -1
    """Step of the last evaluation; -1 before the first one."""
    metrics: dict[str, float] = {}
    """Metrics of the last evaluation."""
    best: BestMetric = msgspec.field(default_factory=BestMetric)
    """Best value of the metric that decides the best checkpoint."""
    stopping: BestMetric = msgspec.field(default_factory=BestMetric)
    """Best value of the early-stopping metric."""

    def push(self, step: int, metrics: dict[str, float]) -> bool:
        """Replace the last evaluation by this one; return False if that was at the same step."""
        again = step == self.step
        self.step, self.metrics = step, metrics
        return not again


class ModelSelectionState(msgspec.Struct, kw_only=True):
    """The evaluations in a checkpoint; the names of the fields are part of the file format."""

    eval_loss: float | None = None
    """Loss of the last evaluation; None before the first one."""
    best_eval_loss: float | None = None
    """Lowest finite evaluation loss so far; None before the first one."""
    judgement: EvaluationHistory = msgspec.field(default_factory=EvaluationHistory)


class ModelSelection:
    """Follows evaluations: whether the last one is the best, and whether the run should end."""

    def __init__(self, best: str | None, stop: StopRule | None) -> None:
        """Start without evaluations.

        Args:
            best: metric that decides the best checkpoint; None selects none.
            stop: early-stopping settings; None never ends the run.
        """
        self._best = best
        self._stop = stop
        self.state = ModelSelectionState()

    def restore(self, state: ModelSelectionState) -> None:
        """Continue from the state in a checkpoint."""
        self.state = state

    def evaluated(self, step: int, metrics: dict[str, float]) -> None:
        """Add an evaluation; one that is repeated at the same step counts once.

        `metrics` must contain `loss`.
        """
        state, loss = self.state, metrics["loss"]
        state.eval_loss = loss
        best = state.best_eval_loss
        if math.isfinite(loss) and (best is None or not best <= loss):  # `best` may be a saved NaN
            state.best_eval_loss = loss
        history, stop = state.judgement, self._stop
        if not history.push(step, metrics):
            return
        if self._best is not None and self._best in metrics:
            history.best.push(self._best, step, metrics[self._best])
        if stop and stop.metric in metrics:
            history.stopping.push(stop.metric, step, metrics[stop.metric], stop.min_delta)

    def benchmarked(self, step: int, metrics: dict[str, float]) -> None:
        """Add what a benchmark has measured on the checkpoint of a step, for early stopping.

        The best checkpoint follows from the manifests, which hold the results.
        """
        history, stop = self.state.judgement, self._stop
        if stop and stop.metric in metrics:
            history.stopping.push(stop.metric, step, metrics[stop.metric], stop.min_delta)

    def metrics_at(self, step: int) -> dict[str, float]:
        """Return the metrics of the last evaluation; empty if it was not made at this step."""
        history = self.state.judgement
        return history.metrics if history.step == step else {}

    def is_best(self, step: int) -> bool:
        """Whether the last evaluation was made at this step and is the best so far."""
        history = self.state.judgement
        return history.best.value is not None and history.best.step == step == history.step

    def reason_to_stop(self) -> str | None:
        """Return why early stopping ends the run now, or None to continue."""
        stop, record = self._stop, self.state.judgement.stopping
        if stop is None or record.waited < stop.patience:
            return None
        return describe_stop(stop.metric, record, stop.min_delta)


def describe_stop(metric: str, record: BestMetric, min_delta: float) -> str:
    """Describe for a user why early stopping ends the run."""
    value, step = record.value, record.step
    best = "no finite value" if value is None else f"{value:.4g} at step {step}"
    by = f" by more than {min_delta:g}" if min_delta else ""
    plural = "" if record.waited == 1 else "s"
    return f"{metric} has not improved{by} for {record.waited} evaluation{plural} (best {best})"
