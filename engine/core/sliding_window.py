"""Sliding window with order statistics, for robust figures of the detector and of the meters."""

from __future__ import annotations

import math
from bisect import bisect_left, insort

import msgspec

KEPT, MOST_KEPT, ALWAYS_KEPT = 2, 4, 32
"""How many of the highest numbers an `UpperWindow` keeps sorted when `count` are asked for.

It selects `KEPT` × count + `ALWAYS_KEPT`, and selects again when it has fewer than count, or more
than `MOST_KEPT` × count + `ALWAYS_KEPT`.
"""


def median_of(ordered: list[float]) -> float:
    """Return the median of numbers in ascending order; there must be at least one."""
    count = len(ordered)
    middle = count // 2
    return ordered[middle] if count % 2 else 0.5 * (ordered[middle - 1] + ordered[middle])


class SlidingWindow(msgspec.Struct, dict=True):
    """The last `size` numbers, also kept sorted; a push is a binary search and a short memmove."""

    size: int
    values: list[float] = []
    """The numbers, oldest first."""

    def __post_init__(self) -> None:
        self.ordered = sorted(self.values)

    def __len__(self) -> int:
        return len(self.ordered)

    def push(self, value: float) -> float | None:
        """Add a number; return the one that leaves the window, or None if there was room."""
        values = self.values
        ordered = self.ordered
        fallen = None
        if len(values) >= self.size:
            fallen = values.pop(0)
            del ordered[bisect_left(ordered, fallen)]
        values.append(value)
        insort(ordered, value)
        return fallen

    def clear(self) -> None:
        """Remove all numbers."""
        self.values.clear()
        self.ordered.clear()

    def quantile(self, share: float) -> float:
        """Return a quantile of the window, which must not be empty, by nearest rank.

        Args:
            share: from 0, the smallest number, to 1, the largest.
        """
        ordered = self.ordered
        return ordered[int(share * (len(ordered) - 1) + 0.5)]

    def median(self) -> float:
        """Return the median of the window, which must not be empty."""
        return median_of(self.ordered)

    def spread(self) -> float:
        """Return the interquartile range of the window, which must not be empty.

        It is scaled to equal the standard deviation of normal noise.
        """
        ordered = self.ordered
        last = len(ordered) - 1
        return (ordered[int(0.75 * last + 0.5)] - ordered[int(0.25 * last + 0.5)]) / 1.349


class LastValues(msgspec.Struct):
    """The last `size` numbers, unsorted, for a median that is seldom asked for."""

    size: int
    values: list[float] = []
    """The numbers, oldest first."""

    def push(self, value: float) -> float | None:
        """Add a number; return the one that leaves the window, or None if there was room."""
        values = self.values
        values.append(value)
        return values.pop(0) if len(values) > self.size else None

    def median(self) -> float:
        """Return the median of the numbers; there must be at least one."""
        return median_of(sorted(self.values))


class UpperWindow(msgspec.Struct, dict=True):
    """The last `size` numbers, of which only the highest are kept sorted.

    Adding a number below these needs no search. How many are sorted depends on `highest_of`.
    """

    size: int
    values: list[float] = []
    """The numbers, oldest first."""

    def __post_init__(self) -> None:
        self.floor = -math.inf
        self.highest = sorted(self.values)
        """The numbers from `floor` on, in ascending order."""

    def __len__(self) -> int:
        return len(self.values)

    def push(self, value: float) -> None:
        """Add a number; beyond `size` numbers the oldest one leaves the window."""
        values, floor = self.values, self.floor
        values.append(value)
        if value >= floor:
            insort(self.highest, value)
        if len(values) > self.size:
            fallen = values.pop(0)
            if fallen >= floor:
                highest = self.highest
                del highest[bisect_left(highest, fallen)]

    def highest_of(self, count: int) -> list[float]:
        """Return at least the `count` highest numbers, in ascending order.

        The window must have that many numbers. The list changes with the next push.
        """
        highest, most = self.highest, MOST_KEPT * count + ALWAYS_KEPT
        # Many numbers that are equal to the floor would all be selected again.
        too_many = len(highest) > most and highest[-most] > self.floor
        if too_many or len(highest) < count:
            ordered = sorted(self.values)
            self.floor = ordered[-min(KEPT * count + ALWAYS_KEPT, len(ordered))]
            highest = self.highest = ordered[bisect_left(ordered, self.floor) :]
        return highest
