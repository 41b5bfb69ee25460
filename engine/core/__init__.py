"""Decisions without I/O: settings, guard, anomaly detection, recovery, retention, reports."""
