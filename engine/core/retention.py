"""Retention: which checkpoints may be removed, and which one is a good rollback target; no I/O."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from typing import Protocol, TypeVar

from ..protocol.benchmarks.result import BENCH
from ..protocol.thresholds import lower_is_better
from .anomaly.alerts import Alert

WATCH_WINDOW_STEPS = 20
"""A checkpoint taken fewer steps than this after a warning already contains its cause."""
EVAL_TOLERANCE = 0.03
"""Share above the best evaluation loss up to which a checkpoint still counts as good."""


class RetainedCheckpoint(Protocol):
    """The facts about a checkpoint that decisions need; a manifest has them."""

    @property
    def name(self) -> str:
        """Name of the checkpoint's folder."""

    @property
    def step(self) -> int:
        """Optimizer steps finished at the checkpoint."""

    @property
    def timeline(self) -> int:
        """Timeline the checkpoint was written on."""

    @property
    def pinned(self) -> bool:
        """Whether a user pinned the checkpoint, so that it is kept."""

    @property
    def good(self) -> bool:
        """Whether the checkpoint was a good rollback target when it was written."""

    @property
    def eval_loss(self) -> float | None:
        """Newest evaluation loss at the checkpoint; None without an evaluation."""

    @property
    def metrics(self) -> dict[str, float]:
        """Metrics of an evaluation at exactly this step, and of benchmarks; empty without any."""

    @property
    def number(self) -> int:
        """Position among the run's checkpoints, from 1."""


_Checkpoint = TypeVar("_Checkpoint", bound=RetainedCheckpoint)


def to_remove(
    manifests: Sequence[RetainedCheckpoint],
    *,
    keep: int,
    in_use: Collection[str] = (),
    by: str | None = None,
) -> list[str]:
    """Return the names of the checkpoints that may be removed, oldest first.

    The newest `keep`, pinned ones, those in use, the best one and the newest good one are kept, so
    that there is always a rollback target.

    Args:
        manifests: complete checkpoints, oldest first.
        keep: number of the newest checkpoints to keep.
        in_use: names that are still referred to, such as a rollback target.
        by: metric that decides the best checkpoint; None is the evaluation loss.
    """
    staying = {m.name for m in manifests[len(manifests) - min(keep, len(manifests)) :]}
    staying |= {m.name for m in manifests if m.pinned} | set(in_use)
    staying |= {m.name for m in (best(manifests, by), newest_good(manifests)) if m is not None}
    return [m.name for m in manifests if m.name not in staying]


_MOST_AWAITING = 4
"""Checkpoints beyond the newest ones that are kept until a benchmark has measured them."""


def awaiting_benchmarks(manifests: Sequence[RetainedCheckpoint], interval: int) -> list[str]:
    """Return the names of checkpoints that a benchmark is still to measure, oldest first.

    Of those after the last one that was measured, so many are returned that disk space stays
    limited where the measurements are slow, or fail.

    Args:
        manifests: complete checkpoints, oldest first.
        interval: number of checkpoints from one that is measured to the next; 0 if none is.
    """
    if not interval:
        return []
    measured = [any(name.startswith(BENCH) for name in one.metrics) for one in manifests]
    last = max((at for at, done in enumerate(measured) if done), default=-1)
    due = [one.name for one in manifests[last + 1 :] if one.number % interval == 0]
    return due[:_MOST_AWAITING]


def best(manifests: Iterable[_Checkpoint], by: str | None = None) -> _Checkpoint | None:
    """Return the checkpoint with the best finite value of a metric; None if none has a value.

    Of equal checkpoints the newer one is returned.

    Args:
        manifests: complete checkpoints, oldest first.
        by: the metric; None is the evaluation loss.
    """
    sign = 1.0 if by is None or lower_is_better(by) else -1.0
    judged = [(m, _value(m, by)) for m in manifests]
    finite = [(m, sign * v) for m, v in judged if v is not None and math.isfinite(v)]
    return min(reversed(finite), key=lambda pair: pair[1])[0] if finite else None


def _value(manifest: RetainedCheckpoint, by: str | None) -> float | None:
    return manifest.eval_loss if by is None else manifest.metrics.get(by)


def newest_good(
    manifests: Sequence[_Checkpoint], before_step: int | None = None
) -> _Checkpoint | None:
    """Return the newest good checkpoint, at or before a step if one is given; None without one."""
    fit = (m for m in reversed(manifests) if m.good and _at_or_before(m, before_step))
    return next(fit, None)


def _at_or_before(manifest: RetainedCheckpoint, step: int | None) -> bool:
    return step is None or manifest.step <= step


def is_good(
    step: int,
    loss: float | None,
    eval_loss: float | None,
    best_eval_loss: float | None,
    alerts: Iterable[Alert],
) -> bool:
    """Whether a checkpoint taken now is a good rollback target.

    Its loss must be finite, its evaluation loss finite and at most `EVAL_TOLERANCE` above the
    lowest; None, not measured, passes. No alert that threatens the weights may be less than
    `WATCH_WINDOW_STEPS` before it, or a rollback would return to a state in which the instability
    has already begun.
    """
    if loss is not None and not math.isfinite(loss):
        return False
    if eval_loss is not None and not math.isfinite(eval_loss):
        return False
    worst = math.inf if best_eval_loss is None else best_eval_loss + _tolerance(best_eval_loss)
    if eval_loss is not None and eval_loss > worst:
        return False
    return not any(_is_near(alert, step) for alert in alerts)


def _tolerance(eval_loss: float) -> float:
    return EVAL_TOLERANCE * abs(eval_loss)


def _is_near(alert: Alert, step: int) -> bool:
    return alert.threatens and 0 <= step - alert.step < WATCH_WINDOW_STEPS


def good_checkpoint(
    manifests: Sequence[_Checkpoint],
    alerts: Iterable[Alert],
    *,
    timeline: int | None = None,
    exclude: Collection[str] = (),
) -> _Checkpoint | None:
    """Return the newest good checkpoint before the first of these alerts; None without one.

    Args:
        manifests: complete checkpoints, oldest first.
        alerts: alerts of the incident, including early warnings.
        timeline: the current timeline; checkpoints of later ones are not considered.
        exclude: names of checkpoints that must not be used again.
    """
    steps = [alert.step for alert in alerts]
    known = [m for m in manifests if m.name not in exclude]
    known = [m for m in known if timeline is None or m.timeline <= timeline]
    return newest_good(known, min(steps) - 1 if steps else None)
