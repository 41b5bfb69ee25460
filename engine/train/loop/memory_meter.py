"""Memory meter: this rank's memory, and its GPU's utilisation, temperature, power and PCIe rate."""

from __future__ import annotations

import math
import time
from typing import NamedTuple

import torch

from ...config.memory.hardware import host_memory
from ...telemetry.gpu import BackgroundSampler, GpuSample, GpuSampler
from ...telemetry.process import rss_bytes

SHARED_S = 0.2
"""Steps within this time share a reading of the resident memory, which is a system call."""


class MemoryReading(NamedTuple):
    """Memory and device readings of a step, named after their `StepFinished` fields.

    A reading that this device does not report is None.
    """

    mem_allocated_bytes: int | None
    """Peak allocated memory since the previous reading."""
    mem_reserved_bytes: int | None
    mem_total_bytes: int | None
    rss_bytes: int
    gpu_util: float | None = None
    gpu_temp_c: float | None = None
    gpu_power_w: float | None = None
    pcie_bytes_per_s: float | None = None


def sampler_of(device: torch.device) -> BackgroundSampler | None:
    """Start to sample the sensors of a GPU in a thread; return None for a CPU."""
    if device.type != "cuda":
        return None
    return BackgroundSampler(GpuSampler(device.index or 0))


class MemoryMeter:
    """Reads memory at each step; a thread samples the other GPU readings through NVML."""

    def __init__(
        self,
        device: torch.device,
        *,
        every_s: float = 0.0,
        sampler: BackgroundSampler | None = None,
    ) -> None:
        """Start to read.

        Args:
            device: device of this rank.
            sampler: reads the sensors of a GPU already; None starts to read them.
            every_s: least seconds between two readings of a GPU's memory; the steps in between
                share one, and its peak is that of all steps since the one before.
        """
        self._device = device
        self._every_s = every_s
        self._known: MemoryReading | None = None
        self._read_at = -math.inf
        self._total_bytes = host_memory().total_bytes
        self._rss_bytes, self._rss_at = 0, -math.inf
        self._gpu = sampler or sampler_of(device)
        if self._gpu is not None:
            self._total_bytes = torch.cuda.get_device_properties(device).total_memory
            torch.cuda.reset_peak_memory_stats(device)  # the first step did not load the model

    def read(self) -> MemoryReading:
        """Return the reading of the current step and reset the peak."""
        if self._gpu is None:
            return MemoryReading(None, None, self._total_bytes, self._resident())
        now = time.monotonic()
        if self._known is None or now - self._read_at >= self._every_s:
            self._known, self._read_at = self._of_gpu(self._gpu.last), now
        return self._known

    def _of_gpu(self, sample: GpuSample) -> MemoryReading:
        known = torch.cuda.memory_stats_as_nested_dict(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)
        return MemoryReading(
            known["allocated_bytes"]["all"]["peak"],
            known["reserved_bytes"]["all"]["current"],
            self._total_bytes,
            self._resident(),
            sample.util,
            sample.temp_c,
            sample.power_w,
            sample.pcie_bytes_per_s,
        )

    def _resident(self) -> int:
        now = time.monotonic()
        if now - self._rss_at >= SHARED_S:
            self._rss_bytes, self._rss_at = rss_bytes(), now
        return self._rss_bytes
