"""Checks of the tokenized data before the first step: what cannot be learned, and duplicates."""
