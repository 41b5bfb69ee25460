"""Step clock: times one optimizer step on the device; only reading the result waits for it."""

from __future__ import annotations

import time
from typing import Any

import torch


class StepClock:
    """Times one optimizer step with CUDA events, or with the clock of the host on a CPU."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._began = self._lapped = self._ended = self._mark()

    def _mark(self) -> Any:
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # of torch
        event.record()
        return event

    def lap(self) -> None:
        """Mark the start of a backward pass; during the last one this rank waits for the others."""
        self._lapped = self._mark()

    def end(self) -> None:
        """Mark the end of the step."""
        self._ended = self._mark()

    def lapped_s(self) -> float:
        """Return the seconds from the start to the last `lap`, 0 without one.

        The device must have reached the `lap`.
        """
        return self._since_began(self._lapped)

    def took_s(self) -> float:
        """Return the seconds of the step; waits until the device has reached its end."""
        if self._cuda:
            self._ended.synchronize()
        return self._since_began(self._ended)

    def _since_began(self, mark: Any) -> float:
        if self._cuda:
            return float(self._began.elapsed_time(mark)) / 1e3
        return float(mark - self._began)
