"""The ranks of a run: how each stands, and in which order they are shown."""
