"""The typed run configuration, its loader and the planner; no torch."""
