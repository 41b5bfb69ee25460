"""Agreement of all ranks over a gloo side group, never the training group.

Every method is entered by every rank at the same point of the step. With one rank all of them are
plain functions.
"""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist

_TIMEOUT = timedelta(seconds=120)
"""Longest silence of a rank; a paused run ticks far more often."""


class Agreement:
    """What the ranks decide together."""

    def __init__(self, rank: int = 0, world_size: int = 1) -> None:
        self.rank = rank
        self.world_size = world_size
        self._group = dist.new_group(backend="gloo", timeout=_TIMEOUT) if world_size > 1 else None

    @property
    def alone(self) -> bool:
        """There is one rank."""
        return self._group is None

    def max(self, values: list[int]) -> list[int]:
        """Element-wise maximum over ranks."""
        if self._group is None:
            return values
        tensor = torch.tensor(values, dtype=torch.int64)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=self._group)
        return [int(v) for v in tensor.tolist()]

    def rows(self, values: list[float]) -> list[list[float]]:
        """Every rank's values, by rank; NaN and infinities stay."""
        if self._group is None:
            return [values]
        mine = torch.tensor(values, dtype=torch.float64)
        every = [torch.empty_like(mine) for _ in range(self.world_size)]
        dist.all_gather(every, mine, group=self._group)
        return [row.tolist() for row in every]

    def share(self, data: bytes) -> bytes:
        """Rank 0's bytes, on every rank."""
        if self._group is None:
            return data
        length = torch.tensor([len(data)], dtype=torch.int64)
        dist.broadcast(length, src=0, group=self._group)
        buffer = torch.empty(int(length), dtype=torch.uint8)
        if self.rank == 0 and data:
            buffer.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        dist.broadcast(buffer, src=0, group=self._group)
        return bytes(buffer.numpy().tobytes())

    def gather(self, data: bytes) -> list[bytes]:
        """Every rank's bytes, by rank."""
        if self._group is None:
            return [data]
        found: list[bytes] = [b""] * self.world_size
        dist.all_gather_object(found, data, group=self._group)
        return found

    def errors(self, error: str | None) -> list[str]:
        """What went wrong on any rank; empty when nothing did."""
        if self._group is None:
            return [error] if error else []
        found: list[str | None] = [None] * self.world_size
        dist.all_gather_object(found, error, group=self._group)
        return [f"rank {rank}: {text}" for rank, text in enumerate(found) if text]
