"""The files of an existing adapter, and configurations that start from one; no torch."""
