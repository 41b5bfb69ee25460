"""This rank's device and its place among the ranks."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist


@dataclass(frozen=True)
class Place:
    """One rank."""

    rank: int
    world_size: int
    device: torch.device

    @property
    def description(self) -> str:
        """The device as a person knows it."""
        if self.device.type != "cuda":
            return f"cpu ({torch.get_num_threads()} threads)"
        properties = torch.cuda.get_device_properties(self.device)
        return f"{self.device} {properties.name} {properties.total_memory / 2**30:.1f} GiB"


def take_place() -> Place:
    """Choose the device and join the other ranks, if torchrun started any."""
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    rank = int(os.environ.get("RANK", "0"))
    local = int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", local)
        torch.cuda.set_device(device)
    if world_size > 1 and not dist.is_initialized():
        if device.type == "cuda":
            dist.init_process_group("nccl", device_id=device)
        else:
            dist.init_process_group("gloo")
    return Place(rank, world_size, device)


def leave_place() -> None:
    """Part from the other ranks."""
    if dist.is_initialized():
        dist.destroy_process_group()


class Stopwatch:
    """Times a stretch of work on the device that does it, without waiting for it."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._started = self._mark()
        self._lapped = self._started

    def _mark(self) -> Any:
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # of torch
        event.record()
        return event

    def start(self) -> None:
        """The stretch begins."""
        self._started = self._lapped = self._mark()

    def lap(self) -> None:
        """The stretch ends here, unless it is called again."""
        self._lapped = self._mark()

    def lapped_s(self) -> float:
        """Seconds from `start` to the last `lap`; the device must have come that far."""
        if self._cuda:
            return float(self._started.elapsed_time(self._lapped)) / 1e3
        return float(self._lapped - self._started)
