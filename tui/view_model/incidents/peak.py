"""The peak of an incident: which metric was how far from its usual value, and at which step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fttui.engine.protocol.thresholds import INCIDENT_STEPS

from ..branches import Branch
from .alarm import Anomaly
from .fold import METRICS
from .incident import Incident

NAMES = {
    "loss": "loss",
    "grad_norm": "gradient norm",
    "tokens_per_s": "tokens/s",
    "eval.loss": "evaluation loss",
}
_RANKED = ("loss", "grad_norm", "eval.loss", "tokens_per_s")
"""Metrics of which the first that an alarm is about is shown."""


@dataclass(frozen=True)
class MetricPeak:
    """The value of a metric that was farthest from its usual one."""

    metric: str
    """Name of the metric for people; the kind of the alert if it is about no curve."""
    value: float
    usual: float | None
    """Usual value before the incident; None if it is unknown."""
    step: int

    @property
    def ratio(self) -> float | None:
        """Value over the usual one; None if it means nothing."""
        if not self.usual or self.usual < 0 or not math.isfinite(self.value):
            return None
        return self.value / self.usual


def peak_of(branches: Sequence[Branch], incident: Incident) -> MetricPeak | None:
    """Return the peak of an incident; None if no alarm has a value."""
    chosen = _chosen(incident)
    if chosen is None or chosen.event.value is None:
        return None
    curve = METRICS.get(chosen.event.kind, "")
    value, step = chosen.event.value, chosen.step
    falls = chosen.event.baseline is not None and value < chosen.event.baseline
    for alarm in incident.alarms:
        found = _extreme(branches, alarm, incident, curve, falls=falls)
        if found is not None and (found[0] < value if falls else _above(found[0], value)):
            value, step = found
    usual = next((a.event.baseline for a in incident.alarms if _about(a) == curve), None)
    return MetricPeak(NAMES.get(curve, chosen.event.kind.replace("_", " ")), value, usual, step)


def _chosen(incident: Incident) -> Anomaly | None:
    """Return the alarm whose metric is shown: the loss first, and of that the farthest value."""
    for metric in _RANKED:
        about = [a for a in incident.alarms if _about(a) == metric and a.event.value is not None]
        if about:
            return max(about, key=lambda a: _distance(a.event.value, a.event.baseline))
    return next((a for a in incident.alarms if a.event.value is not None), None)


def _about(alarm: Anomaly) -> str:
    return METRICS.get(alarm.event.kind, "")


def _distance(value: float | None, usual: float | None) -> float:
    if value is None or not math.isfinite(value):
        return math.inf
    return abs(value - (usual or 0.0))


def _above(value: float, other: float) -> bool:
    """Whether a value is above another one; one that is not finite is above all finite ones."""
    return math.isfinite(other) and (not math.isfinite(value) or value > other)


def _extreme(
    branches: Sequence[Branch], alarm: Anomaly, incident: Incident, curve: str, *, falls: bool
) -> tuple[float, int] | None:
    """Return the farthest value, and its step, on the branch of an alarm from its step on.

    Once nothing is pending, only the steps up to `INCIDENT_STEPS` after the alarm count.
    """
    series = branches[alarm.branch].curves.get(curve) if alarm.branch < len(branches) else None
    if series is None or not len(series):
        return None
    last = math.inf if incident.pending else alarm.step + INCIDENT_STEPS
    begin, end = np.searchsorted(series.xs, [alarm.step, last], side="left")
    xs, ys = series.xs[begin : end + 1], series.ys[begin : end + 1]
    if not len(ys):
        return None
    finite = np.isfinite(ys)
    if not finite.all() and not falls:
        at = int(np.argmin(finite))
    else:
        at = int(np.nanargmin(ys) if falls else np.nanargmax(ys))
    return float(ys[at]), int(xs[at])
