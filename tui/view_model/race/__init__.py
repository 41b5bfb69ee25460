"""A race from a checkpoint: its variants, its rounds, its results and its verdict."""
