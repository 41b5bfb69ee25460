"""Anomaly detection: a streaming detector, its alerts and its verdicts."""

from __future__ import annotations

from .alerts import ALARM, INFO, INSTABILITY, LOCAL, WATCH, Alert, AlertVerdict
from .detector import Detector

__all__ = ["ALARM", "INFO", "INSTABILITY", "LOCAL", "WATCH", "Alert", "AlertVerdict", "Detector"]
