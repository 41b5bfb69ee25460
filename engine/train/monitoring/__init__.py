"""Observers of training: anomaly monitor, reports, gradient flow, profiler, notifications."""
