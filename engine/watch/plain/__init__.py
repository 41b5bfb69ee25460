"""Watched loops in plain PyTorch."""
