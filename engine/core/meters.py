"""Running figures of a run: smoothed loss, throughput, the normal range of gradient norms."""

from __future__ import annotations

import math

import msgspec

from .sliding_window import SlidingWindow


class LossAverage(msgspec.Struct):
    """Exponential moving average with bias correction; non-finite values are left out."""

    decay: float = 0.98
    total: float = 0.0
    weight: float = 0.0

    def push(self, value: float) -> None:
        """Take a value in."""
        if math.isfinite(value):
            self.total = self.decay * self.total + (1 - self.decay) * value
            self.weight = self.decay * self.weight + (1 - self.decay)

    @property
    def value(self) -> float | None:
        """The average; None before the first value."""
        return self.total / self.weight if self.weight > 0 else None


class Rate(msgspec.Struct):
    """Units per second over the last `size` steps, pauses between steps left out."""

    size: int = 20
    units: list[float] = []
    seconds: list[float] = []

    def push(self, units: float, seconds: float) -> None:
        """Take a step in: what it got through and how long it took."""
        self.units.append(units)
        self.seconds.append(seconds)
        del self.units[: -self.size], self.seconds[: -self.size]

    @property
    def value(self) -> float | None:
        """Units per second; None before any time has passed."""
        elapsed = sum(self.seconds)
        return sum(self.units) / elapsed if elapsed > 0 else None


class RecentNorms(msgspec.Struct):
    """The last gradient norms before clipping, and how often clipping bit."""

    norms: SlidingWindow = msgspec.field(default_factory=lambda: SlidingWindow(200))
    clipped: list[bool] = []
    """Of the same steps, oldest first."""

    def push(self, norm: float | None, *, clipped: bool = False) -> None:
        """Take a norm in; missing and non-finite ones are left out."""
        if norm is not None and math.isfinite(norm):
            self.norms.push(norm)
            self.clipped.append(clipped)
            del self.clipped[: -self.norms.size]

    def percentile(self, percent: float) -> float | None:
        """The norm below which `percent` of the recent ones lie; None when there are none."""
        ordered = self.norms.ordered
        if not ordered:
            return None
        at = min(max(percent / 100, 0.0), 1.0) * (len(ordered) - 1)
        low = int(at)
        high = min(low + 1, len(ordered) - 1)
        return ordered[low] + (at - low) * (ordered[high] - ordered[low])

    def normal_range(self) -> tuple[float, float] | None:
        """The 5 and 95 % percentiles; None when there are no norms."""
        low, high = self.percentile(5), self.percentile(95)
        return None if low is None or high is None else (low, high)

    def clip_share(self) -> float | None:
        """Share of recent steps whose gradient was clipped; None when there are none."""
        return sum(self.clipped) / len(self.clipped) if self.clipped else None
