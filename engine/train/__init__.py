"""Trainers under control: exact state, rank agreement and the one bridge to the HF callback API."""
