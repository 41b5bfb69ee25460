"""The run folder: journal, control journal, checkpoints, process marks and status; no torch."""
