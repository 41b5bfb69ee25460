"""Checks of the data before the first step: duplicates, model limits, what cannot be learned."""
