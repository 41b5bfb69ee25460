"""Rank place: chooses the device of this rank, joins the process group of all ranks, leaves it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore  # type: ignore[attr-defined]  # of torch, not listed
from torch.distributed.rendezvous import rendezvous

from ...telemetry.gpu import GpuSampler
from .elastic import LaunchAttempt


@dataclass(frozen=True)
class RankPlace:
    """The number and the device of one rank, and the number of ranks."""

    rank: int
    world_size: int
    device: torch.device

    @property
    def description(self) -> str:
        """The name and memory of the device, for the log."""
        if self.device.type != "cuda":
            threads = torch.get_num_threads()
            return f"cpu ({threads} thread{'s' if threads > 1 else ''})"
        properties = torch.cuda.get_device_properties(self.device)
        name = f"{self.device} {properties.name} {properties.total_memory / 2**30:.1f} GiB"
        links = GpuSampler(self.device.index or 0).links()
        return f"{name}, {links}" if links else name


def take_place(timeout_s: float) -> RankPlace:
    """Choose the device, join the other ranks if torchrun started any, and return the place.

    A GPU becomes the current CUDA device.

    Args:
        timeout_s: longest wait of a rank in a collective of the training group, in seconds.
    """
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    rank = int(os.environ.get("RANK", "0"))
    local = int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", local)
        torch.cuda.set_device(device)
    if world_size > 1 and not dist.is_initialized():
        _join(device, timedelta(seconds=timeout_s))
    return RankPlace(rank, world_size, device)


def _join(device: torch.device, timeout: timedelta) -> None:
    store, rank, world_size = next(rendezvous("env://", timeout=timeout))
    # The store outlives a crash and still holds the addresses of dead ranks, so each attempt has
    # its own prefix.
    attempt = LaunchAttempt.of(os.environ).number
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        store=PrefixStore(f"attempt-{attempt}", store),
        rank=rank,
        world_size=world_size,
        timeout=timeout,
        device_id=device if device.type == "cuda" else None,
    )


def leave_place() -> None:
    """Leave the process group of the ranks."""
    if dist.is_initialized():
        dist.destroy_process_group()
