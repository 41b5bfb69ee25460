"""What evaluations say: which was the best, and whether going on still helps."""

from __future__ import annotations

import math

import msgspec

LOWER_IS_BETTER = frozenset({"loss", "perplexity", "ce", "contrastive"})
"""Of the metrics; of all others a higher value is better."""


def is_better(metric: str, value: float, than: float, by: float = 0.0) -> bool:
    """A metric has improved by more than an amount; NaN never has."""
    gain = than - value if metric in LOWER_IS_BETTER else value - than
    return gain > by


class BestMetric(msgspec.Struct, kw_only=True):
    """The best value of one metric so far."""

    value: float | None = None
    step: int = 0
    waited: int = 0
    """Evaluations since."""

    def push(self, metric: str, step: int, value: float, by: float = 0.0) -> bool:
        """Take a value in; True when it is the best by more than the amount."""
        improved = math.isfinite(value) and (
            self.value is None or is_better(metric, value, self.value, by)
        )
        if improved:
            self.value, self.step, self.waited = value, step, 0
        else:
            self.waited += 1
        return improved


class ModelSelection(msgspec.Struct, kw_only=True):
    """The last evaluation and what came of the ones before; part of the training state."""

    step: int = -1
    """Of the last evaluation."""
    metrics: dict[str, float] = {}
    best: BestMetric = msgspec.field(default_factory=BestMetric)
    """Of the metric that decides the best checkpoint."""
    stopping: BestMetric = msgspec.field(default_factory=BestMetric)
    """Of the metric that early stopping watches."""

    def at(self, step: int) -> dict[str, float]:
        """The metrics of an evaluation at this very step, if there was one."""
        return self.metrics if self.step == step else {}

    def is_best(self, step: int) -> bool:
        """The best evaluation is the one at this step."""
        return self.best.value is not None and self.best.step == step == self.step

    def push(self, step: int, metrics: dict[str, float]) -> bool:
        """Take an evaluation in; False when it is that of a step already judged."""
        again = step == self.step
        self.step, self.metrics = step, metrics
        return not again


def describe_stop(metric: str, record: BestMetric, min_delta: float) -> str:
    """Why training ends early, as a person reads it."""
    best = "no finite value" if record.value is None else f"{record.value:.4g} at {record.step}"
    by = f" by more than {min_delta:g}" if min_delta else ""
    plural = "" if record.waited == 1 else "s"
    return f"{metric} has not improved{by} for {record.waited} evaluation{plural} (best {best})"
