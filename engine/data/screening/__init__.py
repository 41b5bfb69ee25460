"""Checks of the tokenized data before the first step: records without targets, and duplicates."""
