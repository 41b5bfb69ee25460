"""Anomaly detection: a streaming detector, its alerts and its verdicts."""
