"""Several ranks as threads of one process, for code that only needs their agreement."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from fttui.engine.train.distributed.agreement import Agreement

T = TypeVar("T")
_PATIENCE_S = 20.0


class ThreadAgreement:
    """The agreement of one of several threads: every collective is one exchange of all values."""

    alone = False

    def __init__(self, rank: int, table: list[Any], barrier: threading.Barrier) -> None:
        self.rank, self.world_size = rank, len(table)
        self._table, self._barrier = table, barrier

    def exchange(self, value: Any) -> list[Any]:
        """The values of all ranks, ordered by rank."""
        self._table[self.rank] = value
        self._barrier.wait(_PATIENCE_S)
        found = list(self._table)
        self._barrier.wait(_PATIENCE_S)
        return found

    def rows(self, values: list[float]) -> list[list[float]]:
        """The values of all ranks."""
        return self.exchange(values)

    def share(self, data: bytes) -> bytes:
        """The bytes of rank 0."""
        return bytes(self.exchange(data)[0])

    def gather(self, data: bytes) -> list[bytes]:
        """The bytes of all ranks."""
        return self.exchange(data)

    def errors(self, error: str | None) -> list[str]:
        """The errors of all ranks."""
        found = self.exchange(error)
        return [f"rank {rank}: {text}" for rank, text in enumerate(found) if text]


def in_threads(world_size: int, action: Callable[[Agreement], T]) -> list[T]:
    """Run a function of the agreement in that many threads; their results by rank."""
    table: list[Any] = [None] * world_size
    barrier = threading.Barrier(world_size)
    ranks: list[Any] = [ThreadAgreement(rank, table, barrier) for rank in range(world_size)]
    with ThreadPoolExecutor(world_size) as pool:
        return list(pool.map(action, ranks))
