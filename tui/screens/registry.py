"""The screens that keys open, by the name of the Textual mode under which the app shows them."""

from __future__ import annotations

from .base import RunScreen
from .chat import ChatScreen
from .plots.compare import CompareScreen
from .plots.dashboard import DashboardScreen
from .plots.gradients import GradientsScreen
from .plots.metrics import MetricsScreen
from .plots.system import SystemScreen
from .tables.anomalies import AnomaliesScreen
from .tables.checkpoints import CheckpointsScreen
from .tables.config import ConfigScreen
from .tables.data import DataScreen
from .tables.interventions import InterventionsScreen
from .tables.log import LogScreen
from .tables.ranks import RanksScreen
from .tables.runs import RunsScreen
from .tables.samples import SamplesScreen

SCREENS: dict[str, type[RunScreen]] = {
    "runs": RunsScreen,
    "dashboard": DashboardScreen,
    "metrics": MetricsScreen,
    "anomalies": AnomaliesScreen,
    "checkpoints": CheckpointsScreen,
    "interventions": InterventionsScreen,
    "system": SystemScreen,
    "samples": SamplesScreen,
    "chat": ChatScreen,
    "log": LogScreen,
    "config": ConfigScreen,
    "data": DataScreen,
    "ranks": RanksScreen,
    "gradients": GradientsScreen,
    "compare": CompareScreen,
}
