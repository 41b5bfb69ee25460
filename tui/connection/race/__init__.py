"""Races on disk: what a race is planned from, its file, and the process that conducts it."""
