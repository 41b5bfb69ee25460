"""The anomaly report: evidence, likely causes and recommended commands."""
