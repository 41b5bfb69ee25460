"""Observers of training: anomaly monitor, recovery planner, reports, profiler, notifications."""
