"""Commands that hand a run to the scheduler of a cluster."""
