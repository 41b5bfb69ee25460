"""Losses, pooling and retrieval metrics as tensor functions."""
