"""Processes of a run: their identity, whether they are alive, and the files that identify them."""
