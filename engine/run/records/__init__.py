"""The records of a run's journal."""
