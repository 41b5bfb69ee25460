"""The screens that keys lead to, by mode."""

from __future__ import annotations

from .base import RunScreen
from .compare import Compare
from .dashboard import Dashboard
from .lists import Anomalies, Checkpoints, Config, InterventionList, Log, Samples
from .metrics import Metrics
from .runs import RunList
from .system import System

SCREENS: dict[str, type[RunScreen]] = {
    "runs": RunList,
    "dashboard": Dashboard,
    "metrics": Metrics,
    "anomalies": Anomalies,
    "checkpoints": Checkpoints,
    "interventions": InterventionList,
    "system": System,
    "samples": Samples,
    "log": Log,
    "config": Config,
    "compare": Compare,
}
