"""Anomaly reports: evidence, likely causes and recommended commands."""
