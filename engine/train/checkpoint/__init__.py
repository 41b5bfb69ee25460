"""Exact training state: capture, write, verify and restore it on every rank."""
