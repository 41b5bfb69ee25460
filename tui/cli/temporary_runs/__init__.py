"""Temporary runs that are measured and then deleted: `profile` and `lr-find`."""
