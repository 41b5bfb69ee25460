"""The meter of a run: readings of all ranks added up, and the budget that ends the run."""
