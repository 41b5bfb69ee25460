"""Batches of examples: their order, their collation, and batches of streamed data."""
