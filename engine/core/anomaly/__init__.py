"""Anomaly detection: a detector for a stream of training records, its alerts and verdicts."""

from __future__ import annotations

from .alerts import ALARM, INFO, INSTABILITY, LOCAL, WATCH, Alert, AlertVerdict
from .detector import Detector

__all__ = ["ALARM", "INFO", "INSTABILITY", "LOCAL", "WATCH", "Alert", "AlertVerdict", "Detector"]
