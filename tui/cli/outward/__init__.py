"""`export`, `sync` and `prometheus`: data of a run for other programs."""
