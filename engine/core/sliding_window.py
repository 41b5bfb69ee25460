"""Sliding window with order statistics, for robust figures of the detector and of the meters."""

from __future__ import annotations

from bisect import bisect_left, insort

import msgspec


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
        values, ordered = self.values, self.ordered
        values.append(value)
        insort(ordered, value)
        if len(ordered) <= self.size:
            return None
        fallen = values.pop(0)
        del ordered[bisect_left(ordered, fallen)]
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
        ordered = self.ordered
        count = len(ordered)
        middle = count // 2
        return ordered[middle] if count % 2 else 0.5 * (ordered[middle - 1] + ordered[middle])

    def spread(self) -> float:
        """Return the interquartile range of the window, which must not be empty.

        It is scaled to equal the standard deviation of normal noise.
        """
        ordered = self.ordered
        last = len(ordered) - 1
        return (ordered[int(0.75 * last + 0.5)] - ordered[int(0.25 * last + 0.5)]) / 1.349
