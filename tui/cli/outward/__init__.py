"""`export`, `sync` and `prometheus`: what leaves a run for other programs."""
