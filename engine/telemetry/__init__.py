"""NVML, process memory and per-rank logs."""
