"""Measures the benchmarks of a configuration on checkpoints, in processes of their own."""
