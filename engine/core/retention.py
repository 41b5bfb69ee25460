"""Which checkpoints may go, and which one is fit to go back to. Pure: manifests in, names out."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from typing import Protocol, TypeVar

from .anomaly.alerts import INFO, INSTABILITY, Alert
from .model_selection import LOWER_IS_BETTER

WATCH_WINDOW_STEPS = 20
"""A checkpoint this close behind a warning already holds what led to it."""
EVAL_TOLERANCE = 0.03
"""Evaluation loss up to 3 % above the best so far is no loss of quality."""


class RetainedCheckpoint(Protocol):
    """What a decision needs to know of a checkpoint; the ledger's manifest has it."""

    @property
    def name(self) -> str:
        """Its folder's name."""

    @property
    def step(self) -> int:
        """Optimizer steps finished."""

    @property
    def timeline(self) -> int:
        """The timeline it was written on."""

    @property
    def pinned(self) -> bool:
        """A person wants it kept."""

    @property
    def good(self) -> bool:
        """It was a fit rollback target when written."""

    @property
    def eval_loss(self) -> float | None:
        """Evaluation loss at that step, if known."""

    @property
    def metrics(self) -> dict[str, float]:
        """Of an evaluation at that very step."""


_Checkpoint = TypeVar("_Checkpoint", bound=RetainedCheckpoint)


def to_remove(
    manifests: Sequence[RetainedCheckpoint],
    *,
    keep: int,
    in_use: Collection[str] = (),
    by: str | None = None,
) -> list[str]:
    """Names of checkpoints that can go, oldest first.

    Kept are the newest `keep`, pinned ones, those in use, the best one, and the newest good one,
    so that there always is a way back.

    Args:
        manifests: complete checkpoints, oldest first.
        keep: how many of the newest stay.
        in_use: names that something still refers to, such as a rollback target.
        by: metric that says which is the best; None is the evaluation loss.
    """
    staying = {m.name for m in manifests[len(manifests) - min(keep, len(manifests)) :]}
    staying |= {m.name for m in manifests if m.pinned} | set(in_use)
    staying |= {m.name for m in (best(manifests, by), newest_good(manifests)) if m is not None}
    return [m.name for m in manifests if m.name not in staying]


def best(manifests: Iterable[_Checkpoint], by: str | None = None) -> _Checkpoint | None:
    """The checkpoint with the best finite value of a metric; the newer one on a tie.

    Args:
        manifests: complete checkpoints, oldest first.
        by: the metric; None is the evaluation loss.
    """
    sign = 1.0 if by is None or by in LOWER_IS_BETTER else -1.0
    judged = [(m, _value(m, by)) for m in manifests]
    finite = [(m, sign * v) for m, v in judged if v is not None and math.isfinite(v)]
    return min(reversed(finite), key=lambda pair: pair[1])[0] if finite else None


def _value(manifest: RetainedCheckpoint, by: str | None) -> float | None:
    return manifest.eval_loss if by is None else manifest.metrics.get(by)


def newest_good(
    manifests: Sequence[_Checkpoint], before_step: int | None = None
) -> _Checkpoint | None:
    """The newest checkpoint fit to go back to, at or before a step when one is given."""
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
    """A checkpoint taken now is a fit rollback target.

    That is: its loss is finite, its evaluation is not worse than the best by more than
    `EVAL_TOLERANCE`, and no warning of an instability fell into the window before it. Otherwise a
    rollback would return into the ramp.
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
    grave = alert.kind in INSTABILITY and alert.severity != INFO
    return grave and 0 <= step - alert.step < WATCH_WINDOW_STEPS


def good_checkpoint(
    manifests: Sequence[_Checkpoint],
    alerts: Iterable[Alert],
    *,
    timeline: int | None = None,
    exclude: Collection[str] = (),
) -> _Checkpoint | None:
    """Where to go back to because of these alerts: the newest good one before the first warning.

    Args:
        manifests: complete checkpoints, oldest first.
        alerts: of the incident, early warnings included.
        timeline: only checkpoints of this timeline or the older ones it grew from.
        exclude: names that were tried before without a change.
    """
    steps = [alert.step for alert in alerts]
    known = [m for m in manifests if m.name not in exclude]
    known = [m for m in known if timeline is None or m.timeline <= timeline]
    return newest_good(known, min(steps) - 1 if steps else None)
