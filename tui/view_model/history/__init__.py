"""The training that led to the present weights of a run, without what was rolled back."""
