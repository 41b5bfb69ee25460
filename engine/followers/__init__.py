"""Processes that follow the journal of a run and write elsewhere: trackers, alerts, metrics."""
