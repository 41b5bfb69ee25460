"""Learning rate range test: the rates to sweep, when to stop, and the suggested rates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

SMOOTHING = 0.9
"""Decay of the moving average of the loss; losses of single small batches are too noisy."""
DIVERGED = 2.0
"""Multiple of the best smoothed loss from which the sweep counts as diverged. A diverged next-token
loss ends near the log of the vocabulary size, a few times the loss of a good model, so a larger
factor would often not be reached."""
SETTLED = 5
"""First steps, which cannot count as diverged, because the average is not settled yet."""


@dataclass(frozen=True)
class LrRange:
    """Learning rates from low to high in equal ratios, one per step."""

    low: float
    high: float
    steps: int

    def factor(self, step: int) -> float:
        """Return the learning rate after `step` steps as a multiple of the lowest one.

        After the last step of the sweep it stays at the highest rate.
        """
        share = min(step, self.steps - 1) / (self.steps - 1)
        return float((self.high / self.low) ** share)


@dataclass
class Sweep:
    """The losses of a sweep and the learning rates they suggest.

    Source: Smith 2015 (arXiv 1506.01186); smoothing and suggestions as in fast.ai.
    """

    rates: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    smoothed: list[float] = field(default_factory=list)
    diverged: bool = False
    _mean: float = 0.0

    def add(self, rate: float, loss: float) -> None:
        """Add a rate and the loss before its update, and set `diverged` by the smoothed losses.

        A non-finite loss counts as divergence and is not kept.
        """
        if not math.isfinite(loss):
            self.diverged = True
            return
        self._mean = SMOOTHING * self._mean + (1 - SMOOTHING) * loss
        self.rates.append(rate)
        self.losses.append(loss)
        self.smoothed.append(self._mean / (1 - SMOOTHING ** len(self.rates)))
        judged = self.smoothed[SETTLED:]
        self.diverged = bool(judged) and judged[-1] > DIVERGED * min(judged)

    @property
    def steepest(self) -> float | None:
        """The learning rate of the steepest fall on a log scale.

        None if the loss never falls, or if there are too few steps.
        """
        slopes = _slopes([math.log(rate) for rate in self.rates], self.smoothed)
        inner = range(SETTLED, len(slopes) - 1)
        best = min(inner, key=lambda index: slopes[index], default=None)
        return self.rates[best] if best is not None and slopes[best] < 0 else None

    @property
    def below_lowest(self) -> float | None:
        """A tenth of the learning rate with the lowest smoothed loss.

        That is the usual margin to divergence. None with at most `SETTLED` losses.
        """
        settled = range(SETTLED, len(self.smoothed))
        lowest = min(settled, key=lambda index: self.smoothed[index], default=None)
        return None if lowest is None else self.rates[lowest] / 10


def _slopes(x: Sequence[float], y: Sequence[float]) -> list[float]:
    """Return the central differences of y over x; 0 at both ends."""
    if len(x) < 3:
        return [0.0] * len(x)
    inner = [(y[i + 1] - y[i - 1]) / (x[i + 1] - x[i - 1]) for i in range(1, len(x) - 1)]
    return [0.0, *inner, 0.0]
