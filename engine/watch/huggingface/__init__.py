"""Watched trainers of transformers, TRL and sentence-transformers."""
