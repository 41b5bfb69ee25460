"""Agreement of all ranks over a gloo side group, never the training group.

Every method is entered by every rank at the same point of the step. With one rank all of them are
plain functions. What is needed at every step is started early and read late, so that it travels
while the rank computes; only what a command brings is waited for at once.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Generic, TypeVar

import torch
import torch.distributed as dist

from ...errors import FttuiError

TIMEOUT_S = float(os.environ.get("FTTUI_AGREEMENT_TIMEOUT_S", "120"))
"""Longest silence of a rank; a paused run ticks far more often."""

T = TypeVar("T")


@dataclass(frozen=True)
class PendingResult(Generic[T]):
    """An answer on its way."""

    read: Callable[[], T]
    """Waits for the ranks that are late; called once."""


def attempt(action: Callable[[], object]) -> str | None:
    """Do something that may fail; what went wrong, in a line, for `RankAgreement.errors`."""
    try:
        action()
    except FttuiError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 -- the others must hear of it, whatever it was
        return f"{type(error).__name__}: {error}"
    return None


class RankAgreement:
    """What the ranks decide together."""

    def __init__(self, rank: int = 0, world_size: int = 1, timeout_s: float | None = None) -> None:
        self.rank = rank
        self.world_size = world_size
        timeout = timedelta(seconds=TIMEOUT_S if timeout_s is None else timeout_s)
        self._group = dist.new_group(backend="gloo", timeout=timeout) if world_size > 1 else None

    @property
    def alone(self) -> bool:
        """There is one rank."""
        return self._group is None

    def start_max(self, values: list[int]) -> PendingResult[list[int]]:
        """Element-wise maximum over ranks, to be read later."""
        if self._group is None:
            return PendingResult(lambda: values)
        tensor = torch.tensor(values, dtype=torch.int64)
        work = dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=self._group, async_op=True)

        def read() -> list[int]:
            work.wait()
            return [int(v) for v in tensor.tolist()]

        return PendingResult(read)

    def max(self, values: list[int]) -> list[int]:
        """Element-wise maximum over ranks."""
        return self.start_max(values).read()

    def start_rows(self, values: list[float]) -> PendingResult[list[list[float]]]:
        """Every rank's values, by rank, to be read later; NaN and infinities stay."""
        if self._group is None:
            return PendingResult(lambda: [values])
        mine = torch.tensor(values, dtype=torch.float64)
        every = [torch.empty_like(mine) for _ in range(self.world_size)]
        work = dist.all_gather(every, mine, group=self._group, async_op=True)

        def read() -> list[list[float]]:
            work.wait()
            return [row.tolist() for row in every]

        return PendingResult(read)

    def rows(self, values: list[float]) -> list[list[float]]:
        """Every rank's values, by rank; NaN and infinities stay."""
        return self.start_rows(values).read()

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
