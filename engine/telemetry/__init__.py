"""Telemetry of a process: GPU readings by NVML, memory of the process, logs of each rank."""
