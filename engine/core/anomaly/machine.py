"""The machine under the run: throughput that stays low, memory that only grows."""

from __future__ import annotations

from itertools import pairwise

import msgspec

from ..windows import Window

DROP_SHARE = 0.8
DROP_RECORDS = 15
"""Long enough that evaluations, checkpoints and a passing neighbour on the machine do not count."""
BLOCK_RECORDS = 10
BLOCKS = 5
LEAK_RISE = 1.05
FIRST_BLOCKS = 3
"""Allocators grow while a run warms up."""


class Throughput(msgspec.Struct):
    """Compares the recent median with the long one."""

    fast: Window = msgspec.field(default_factory=lambda: Window(20))
    slow: Window = msgspec.field(default_factory=lambda: Window(200))
    low: int = 0

    def update(self, rate: float) -> tuple[float, float] | None:
        """Take a rate in; returns the rates now and before in the record where it counts as low.

        The long window takes no values while the rate is low; after a long time the low rate is
        the normal one.
        """
        fallen = self.fast.push(rate)
        if fallen is not None and self.low == 0:
            self.slow.push(fallen)
        if len(self.slow) < self.fast.size:
            return None
        now, before = self.fast.median(), self.slow.median()
        self.low = self.low + 1 if now < DROP_SHARE * before else 0
        if self.low > self.slow.size:
            self.slow.clear()
            self.low = 0
        return (now, before) if self.low == DROP_RECORDS else None


class Memory(msgspec.Struct):
    """Watches the lower envelope of allocated memory: what long batches need comes and goes."""

    block: list[float] = []
    lows: list[float] = []
    """Lowest value of each finished block, oldest first."""

    def update(self, allocated: float) -> tuple[float, float] | None:
        """Take a value in; returns memory now and before in the record where it counts as a leak.

        A leak is `BLOCKS` rising blocks in a row, `LEAK_RISE` in all, to a new height.
        """
        self.block.append(allocated)
        if len(self.block) < BLOCK_RECORDS:
            return None
        self.lows.append(min(self.block))
        self.block.clear()
        tail = self.lows[-BLOCKS:]
        if len(self.lows) < BLOCKS + FIRST_BLOCKS:
            return None
        rising = all(b > a for a, b in pairwise(tail))
        earlier = max(self.lows[:-BLOCKS])
        del self.lows[: -20 - BLOCKS]
        if not rising or tail[-1] < LEAK_RISE * max(tail[0], earlier):
            return None
        self.lows = tail[-1:] * (BLOCKS + FIRST_BLOCKS - 1)
        return tail[-1], tail[0]
