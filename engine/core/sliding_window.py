"""A sliding window with order statistics: the base of every robust figure of the detector."""

from __future__ import annotations

from bisect import bisect_left, insort

import msgspec


class SlidingWindow(msgspec.Struct, dict=True):
    """The last `size` numbers, also kept in order: O(log n) search and a short memmove per push."""

    size: int
    values: list[float] = []
    """Oldest first."""

    def __post_init__(self) -> None:
        self.ordered = sorted(self.values)

    def __len__(self) -> int:
        return len(self.ordered)

    def push(self, value: float) -> float | None:
        """Add a number; returns the one that fell out, if any."""
        values, ordered = self.values, self.ordered
        values.append(value)
        insort(ordered, value)
        if len(ordered) <= self.size:
            return None
        fallen = values.pop(0)
        del ordered[bisect_left(ordered, fallen)]
        return fallen

    def clear(self) -> None:
        """Forget everything."""
        self.values.clear()
        self.ordered.clear()

    def quantile(self, share: float) -> float:
        """The number below which `share` of the window lies (nearest rank)."""
        ordered = self.ordered
        return ordered[int(share * (len(ordered) - 1) + 0.5)]

    def median(self) -> float:
        """The middle number."""
        ordered = self.ordered
        middle, odd = divmod(len(ordered), 2)
        return ordered[middle] if odd else 0.5 * (ordered[middle - 1] + ordered[middle])

    def spread(self) -> float:
        """Interquartile range as the standard deviation of a normal distribution."""
        ordered = self.ordered
        last = len(ordered) - 1
        return (ordered[int(0.75 * last + 0.5)] - ordered[int(0.25 * last + 0.5)]) / 1.349
