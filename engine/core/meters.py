"""Meters of a run: the averaged loss and the recent gradient norms."""

from __future__ import annotations

import math

import msgspec

from .sliding_window import SlidingWindow


class LossAverage(msgspec.Struct):
    """Exponential moving average of the loss with bias correction; ignores non-finite values."""

    decay: float = 0.98
    total: float = 0.0
    weight: float = 0.0

    def push(self, value: float) -> None:
        """Add the loss of a step to the average, unless it is not finite."""
        if math.isfinite(value):
            self.total = self.decay * self.total + (1 - self.decay) * value
            self.weight = self.decay * self.weight + (1 - self.decay)

    @property
    def value(self) -> float | None:
        """The average; None before the first finite value."""
        return self.total / self.weight if self.weight > 0 else None


class RecentNorms(msgspec.Struct):
    """The last gradient norms before clipping, and which of them were clipped."""

    norms: SlidingWindow = msgspec.field(default_factory=lambda: SlidingWindow(200))
    clipped: list[bool] = []
    """Whether the gradient was clipped, for the same steps, oldest first."""

    def push(self, norm: float | None, *, clipped: bool = False) -> None:
        """Add a gradient norm; missing and non-finite ones are ignored."""
        if norm is not None and math.isfinite(norm):
            self.norms.push(norm)
            self.clipped.append(clipped)
            del self.clipped[: -self.norms.size]

    def percentile(self, percent: float) -> float | None:
        """Return a percentile of the norms, with linear interpolation; None without any.

        `percent` is limited to 0 to 100.
        """
        ordered = self.norms.ordered
        if not ordered:
            return None
        at = min(max(percent / 100, 0.0), 1.0) * (len(ordered) - 1)
        low = int(at)
        high = min(low + 1, len(ordered) - 1)
        return ordered[low] + (at - low) * (ordered[high] - ordered[low])

    def normal_range(self) -> tuple[float, float] | None:
        """Return the 5th and 95th percentiles of the norms; None without any."""
        low, high = self.percentile(5), self.percentile(95)
        return None if low is None or high is None else (low, high)

    def clip_share(self) -> float | None:
        """Return the share of recent steps whose gradient was clipped; None without any."""
        return sum(self.clipped) / len(self.clipped) if self.clipped else None
