"""Detection of system faults: low throughput, a memory leak, a slow rank."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise

import msgspec

from ...protocol.thresholds import SLOW_RANK_RATIO
from ..sliding_window import LastValues, SlidingWindow

DROP_SHARE = 0.8
DROP_RECORDS = 15
LOOK_EVERY = 5
"""Records between two comparisons. Together with `DROP_RECORDS` long enough that evaluations,
checkpoints and short jobs on the same machine do not count."""
BLOCK_RECORDS = 10
BLOCKS = 4
"""Number of rising lows, 5 % in all and above every earlier one, that make a leak.

The memory that long batches need goes down again within ten records.
"""
LEAK_RISE = 1.05
FIRST_BLOCKS = 3
"""Blocks that are left out, because allocators grow while a run warms up."""
SLOW_RANK = math.log(SLOW_RANK_RATIO)
"""Log ratio of a rank's time to the others' above which it counts as slow."""
SLOW_WEIGHT = 1 / 25
SLOW_RECORDS = 50
"""Records in a row with the same slowest rank. Long batches fall on every rank alike; only a slow
machine stays the slowest for long."""


class Throughput(msgspec.Struct):
    """Compares the median rate of recent records with that of many."""

    fast: LastValues = msgspec.field(default_factory=lambda: LastValues(20))
    slow: SlidingWindow = msgspec.field(default_factory=lambda: SlidingWindow(200))
    low: int = 0
    count: int = 0

    def update(self, rate: float) -> tuple[float, float] | None:
        """Add a throughput; return (present, usual) once when a lasting drop is found, else None.

        While the rate is low, the usual rate does not change; after about 200 such records the low
        rate becomes the usual one.
        """
        fallen = self.fast.push(rate)
        if fallen is not None and self.low == 0:
            self.slow.push(fallen)
        self.count = count = self.count + 1
        if count % LOOK_EVERY or len(self.slow) < self.fast.size:
            return None
        now, before = self.fast.median(), self.slow.median()
        self.low = self.low + LOOK_EVERY if now < DROP_SHARE * before else 0
        if self.low > self.slow.size:
            self.slow.clear()
            self.low = 0
        return (now, before) if self.low == DROP_RECORDS else None


class Memory(msgspec.Struct):
    """Detects a leak by the lows of allocated memory; the highs depend on the batches."""

    block: list[float] = []
    lows: list[float] = []
    """Lowest value of each finished block, oldest first."""

    def update(self, allocated: float) -> tuple[float, float] | None:
        """Add a value; return (memory now, memory before) if it completes a leak, else None.

        A leak is `BLOCKS` blocks in a row whose lows rise, to at least `LEAK_RISE` times the low of
        the first of them and of every block before. The first blocks of a run do not count.
        """
        block = self.block
        block.append(allocated)
        if len(block) < BLOCK_RECORDS:
            return None
        self.lows.append(min(block))
        block.clear()
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


class Straggler(msgspec.Struct):
    """Finds the one rank that all others wait for."""

    leads: list[float] = []
    """Smoothed log ratio of a rank's time to the median of the others, by rank."""
    slowest: int = -1
    held: int = 0

    def update(self, seconds: Sequence[float]) -> tuple[int, float, float] | None:
        """Add the seconds of every rank; return (slow rank, its seconds, seconds of the others).

        A rank is returned in its `SLOW_RECORDS`th record in a row as the slow one, with smoothed
        seconds and the median of the others; otherwise, and with a single rank, the result is None.
        """
        if len(seconds) < 2 or min(seconds) <= 0:
            return None
        if len(self.leads) != len(seconds):
            self.leads, self.slowest, self.held = [0.0] * len(seconds), -1, 0
        ordered = sorted(seconds)
        for rank, own in enumerate(seconds):
            lead = math.log(own / _others(ordered, own))
            self.leads[rank] += SLOW_WEIGHT * (lead - self.leads[rank])
        slowest = max(range(len(seconds)), key=self.leads.__getitem__)
        slow = self.leads[slowest] > SLOW_RANK
        self.held = self.held + 1 if slow and slowest == self.slowest else int(slow)
        self.slowest = slowest
        if self.held != SLOW_RECORDS:
            return None
        usual = _others(ordered, seconds[slowest])
        return slowest, usual * math.exp(self.leads[slowest]), usual


def _others(ordered: Sequence[float], own: float) -> float:
    """Return the median of all values but one of them; sorting once keeps many ranks cheap."""
    at, left = bisect_left(ordered, own), len(ordered) - 1
    upper = ordered[left // 2 + (at <= left // 2)]
    if left % 2:
        return upper
    return (ordered[left // 2 - 1 + (at <= left // 2 - 1)] + upper) / 2
