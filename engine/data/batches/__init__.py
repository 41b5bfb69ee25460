"""Batches of examples: their order, collation, and batches from streamed data."""
