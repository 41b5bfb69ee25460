"""Observers of training: anomalies, recovery, gradient flow, profiles, notifications."""
