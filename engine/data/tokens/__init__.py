"""Tokenized examples of each task, and records shown as they are learned."""
