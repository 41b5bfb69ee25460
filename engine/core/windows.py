"""A sliding window with order statistics: the base of every robust figure of the detector."""

from __future__ import annotations

from bisect import bisect_left, insort

import msgspec


class Window(msgspec.Struct, dict=True):
    """The last `size` numbers, also kept in order: O(log n) search and a short memmove per push."""

    size: int
    values: list[float] = []
    """Oldest first."""

    def __post_init__(self) -> None:
        self.ordered = sorted(self.values)

    def __len__(self) -> int:
        return len(self.values)

    def push(self, value: float) -> float | None:
        """Add a number; returns the one that fell out, if any."""
        fallen = None
        if len(self.values) == self.size:
            fallen = self.values.pop(0)
            del self.ordered[bisect_left(self.ordered, fallen)]
        self.values.append(value)
        insort(self.ordered, value)
        return fallen

    def clear(self) -> None:
        """Forget everything."""
        self.values.clear()
        self.ordered.clear()

    def quantile(self, share: float) -> float:
        """The number below which `share` of the window lies (nearest rank)."""
        return self.ordered[int(share * (len(self.ordered) - 1) + 0.5)]

    def median(self) -> float:
        """The middle number."""
        middle = len(self.ordered) // 2
        if len(self.ordered) % 2:
            return self.ordered[middle]
        return 0.5 * (self.ordered[middle - 1] + self.ordered[middle])

    def spread(self) -> float:
        """Interquartile range as the standard deviation of a normal distribution."""
        return (self.quantile(0.75) - self.quantile(0.25)) / 1.349
