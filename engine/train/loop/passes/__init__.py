"""Passes over the micro-batches of a step beyond the one that the training loop makes."""
