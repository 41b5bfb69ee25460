"""The clock of the device that trains: CUDA events, or the host's where there is no GPU."""

from __future__ import annotations

import time
from typing import Any

import torch


def mark() -> Any:
    """A moment, in the order of the device's work."""
    if not torch.cuda.is_available():
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def between(first: Any, last: Any) -> float:
    """Seconds from one moment to another; the device must have come past both."""
    return last - first if isinstance(first, float) else float(first.elapsed_time(last)) / 1e3
