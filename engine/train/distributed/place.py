"""Rank place: chooses the device of this rank, joins the process group of all ranks, leaves it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]  # of torch
from torch.distributed.rendezvous import rendezvous

from ...telemetry.gpu import GpuSampler
from .elastic import LaunchAttempt
from .nodes import ONE_NODE, NodePlace, RankFacts, exchange_facts


@dataclass(frozen=True)
class RankPlace:
    """The number and the device of one rank, and the number of ranks."""

    rank: int
    world_size: int
    device: torch.device
    nodes: NodePlace = ONE_NODE
    every: Sequence[RankFacts] = ()
    """What all ranks have reported, ordered by rank; empty for a single rank."""

    def first_rank_of(self, node: int) -> int:
        """Return the first rank of a node; that of this node if the ranks have not reported."""
        return next((r for r, facts in enumerate(self.every) if facts.node == node), self.rank)

    def elsewhere(self, rank: int) -> str:
        """Return the node and host of a rank, for messages; empty if it is on this node."""
        facts = self.every[rank] if rank < len(self.every) else None
        if facts is None or facts.node == self.nodes.node:
            return ""
        return f"on node {facts.node} ({facts.host}, run folder {facts.run} there)"

    @property
    def rank_hosts(self) -> list[str]:
        """The number and the host of the node of each rank, as one text; empty with one node."""
        every = self.every if self.nodes.several else ()
        return [f"{facts.node} {facts.host}" for facts in every]

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


def take_place(timeout_s: float, facts: RankFacts | None = None) -> RankPlace:
    """Choose the device, join the other ranks if torchrun started any, and return the place.

    A GPU becomes the current CUDA device.

    Args:
        timeout_s: longest wait of a rank for the others to start, and in a collective of the
            training group, in seconds.
        facts: what this rank reports to the others before it joins them; all ranks pass some, or
            none does.

    Raises:
        TrainingFailed: some ranks have not started in time.
    """
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    rank = int(os.environ.get("RANK", "0"))
    local = int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", local)
        torch.cuda.set_device(device)
    every: Sequence[RankFacts] = ()
    if world_size > 1 and not dist.is_initialized():
        every = _join(device, timedelta(seconds=timeout_s), facts)
    return RankPlace(rank, world_size, device, NodePlace.of(os.environ), every)


def _join(device: torch.device, timeout: timedelta, facts: RankFacts | None) -> Sequence[RankFacts]:
    store, rank, world_size = next(rendezvous("env://", timeout=timeout))
    # The store outlives a crash and still holds the addresses of dead ranks, so each attempt has
    # its own prefix.
    attempt = LaunchAttempt.of(os.environ).number
    store = PrefixStore(f"attempt-{attempt}", store)
    every = exchange_facts(store, rank, world_size, facts, timeout.total_seconds()) if facts else ()
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        store=store,
        rank=rank,
        world_size=world_size,
        timeout=timeout,
        device_id=device if device.type == "cuda" else None,
    )
    return every


def own_connection() -> PrefixStore:
    """Return a new connection to the store of the rendezvous, for this attempt of torchrun."""
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = TCPStore(host, port, is_master=False, wait_for_workers=False)
    return PrefixStore(f"attempt-{LaunchAttempt.of(os.environ).number}", store)


def leave_place() -> None:
    """Leave the process group of the ranks."""
    if dist.is_initialized():
        dist.destroy_process_group()
