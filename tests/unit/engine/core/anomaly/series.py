"""Small synthetic training logs."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

from fttui.engine.core.anomaly import Alert, AlertVerdict, Detector

Record = dict[str, Any]


def series(
    count: int, *, level: Callable[[int], float] = lambda i: 1.0, noise: float = 0.03, seed: int = 1
) -> list[Record]:
    """A run whose loss follows `level` with log-normal noise and a steady gradient norm."""
    rng = random.Random(seed)
    return [
        {
            "step": i + 1,
            "loss": level(i) * math.exp(rng.gauss(0, noise)),
            "grad_norm": 0.5 * math.exp(rng.gauss(0, 0.15)),
            "lr": 1e-4,
        }
        for i in range(count)
    ]


def run(records: list[Record], detector: Detector | None = None) -> list[Alert]:
    """All alerts of a run."""
    watching = detector or Detector()
    return [alert for record in records for alert in watching.update(record)]


def verdicts(records: list[Record]) -> list[AlertVerdict]:
    """All verdicts of a run."""
    detector = Detector()
    run(records, detector)
    return detector.take_verdicts()


def kinds(alerts: list[Alert], severity: str = "alarm") -> list[str]:
    """Kinds of the alerts of one severity, in order."""
    return [alert.kind for alert in alerts if alert.severity == severity]
