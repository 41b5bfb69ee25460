"""Agreement of several ranks over a gloo side group, separate from the training group.

Every rank enters every method at the same point of a step. Collectives of every step are started
early and read late, so that they run while the rank computes; only the payload of a command is
waited for at once.
"""

from __future__ import annotations

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from .agreement import Agreement, PendingResult, SingleRank, Table

TIMEOUT_S = float(os.environ.get("FTTUI_AGREEMENT_TIMEOUT_S", "120"))
"""Longest wait for a rank in seconds; a paused run enters a collective far more often."""


def agreement_of(rank: int, world_size: int) -> Agreement:
    """Return the collectives through which ranks agree; with several ranks all must call this."""
    return RankAgreement(rank, world_size) if world_size > 1 else SingleRank()


class RankAgreement:
    """Collectives of several ranks over gloo."""

    def __init__(self, rank: int, world_size: int, timeout_s: float | None = None) -> None:
        self.rank = rank
        self.world_size = world_size
        timeout = timedelta(seconds=TIMEOUT_S if timeout_s is None else timeout_s)
        self._group = dist.new_group(backend="gloo", timeout=timeout)

    @property
    def alone(self) -> bool:
        """Whether there is only one rank."""
        return False

    def start_max(self, values: list[int]) -> PendingResult[list[int]]:
        """Start an element-wise maximum over all ranks."""
        tensor = torch.tensor(values, dtype=torch.int64)
        work = dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=self._group, async_op=True)

        def read() -> list[int]:
            work.wait()
            return [int(v) for v in tensor.tolist()]

        return PendingResult(read)

    def max(self, values: list[int]) -> list[int]:
        """Return the element-wise maximum over all ranks."""
        return self.start_max(values).read()

    def start_table(self, values: list[float]) -> PendingResult[Table]:
        """Start to gather the values of every rank, ordered by rank; NaN and infinity survive."""
        mine = torch.tensor(values, dtype=torch.float64)
        every = torch.empty(self.world_size, len(values), dtype=torch.float64)
        work = dist.all_gather(list(every.unbind()), mine, group=self._group, async_op=True)

        def read() -> Table:
            work.wait()
            table: Table = every.numpy()
            return table

        return PendingResult(read)

    def rows(self, values: list[float]) -> list[list[float]]:
        """Return the values of every rank, ordered by rank; NaN and infinity survive."""
        found: list[list[float]] = self.start_table(values).read().tolist()
        return found

    def share(self, data: bytes) -> bytes:
        """Return the bytes of rank 0 on every rank."""
        length = torch.tensor([len(data)], dtype=torch.int64)
        dist.broadcast(length, src=0, group=self._group)
        buffer = torch.empty(int(length), dtype=torch.uint8)
        if self.rank == 0 and data:
            buffer.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        dist.broadcast(buffer, src=0, group=self._group)
        return bytes(buffer.numpy().tobytes())

    def gather(self, data: bytes) -> list[bytes]:
        """Return the bytes of every rank, ordered by rank."""
        sizes = torch.empty(self.world_size, 1, dtype=torch.int64)
        own = torch.tensor([len(data)], dtype=torch.int64)
        dist.all_gather(list(sizes.unbind()), own, group=self._group)
        # All ranks send as many bytes as the one with the most has.
        padded = torch.zeros(max(1, int(sizes.max())), dtype=torch.uint8)
        if data:
            padded[: len(data)].copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        every = torch.empty(self.world_size, len(padded), dtype=torch.uint8)
        dist.all_gather(list(every.unbind()), padded, group=self._group)
        return [
            row[:size].numpy().tobytes()
            for row, size in zip(every, sizes.flatten().tolist(), strict=True)
        ]

    def errors(self, error: str | None) -> list[str]:
        """Return the errors of all ranks, each with its rank; empty if there is none."""
        found = self.gather((error or "").encode(errors="backslashreplace"))
        return [f"rank {rank}: {text.decode()}" for rank, text in enumerate(found) if text]
