"""Frozen view of a run and the pure functions that advance it."""
