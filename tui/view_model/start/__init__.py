"""The start of a run, before its first step."""
