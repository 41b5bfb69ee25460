"""Upper tail of a noisy quantity: the value that is exceeded with a given small probability."""

from __future__ import annotations

from bisect import insort

import msgspec

from ..sliding_window import SlidingWindow

TAIL_RECORDS = 1000
TAIL_SHARE = 0.1
"""Share of the values that make the tail; the value at its beginning is the threshold."""
WIDTH_RECORDS = 40
"""Values from which the beginning of the tail is known."""
OUTLIERS, OUTLIER_FACTOR = 3, 1.25
"""A value must exceed the third largest of the whole run by a quarter.

A run that has come back from three outliers of a size will have more of them.
"""
FORGIVEN = 2
"""Alarms in the window that are events, not noise: they are left out of the tail, later ones not.

A second spike of the size of the first is told. A run that throws such outliers again and again
has a heavy tail, which then is learned.
"""


class Prior(msgspec.Struct, frozen=True):
    """What is assumed of a tail before records are seen, in standard deviations of a record."""

    threshold: float
    excess: float
    """Mean excess over the threshold."""
    weight: float
    """Number of values in the tail that the assumption is worth."""


class Tail(msgspec.Struct):
    """Exponential tail above the 90 % quantile of the last values, with an uncertain mean excess.

    A gamma distribution of the inverse mean excess is the conjugate prior, so the predictive
    distribution of the next excess e is P(> e) = (1 + e / sum) ** -count, where sum and count of
    the excesses include those of the prior: wide at first, narrower as records come.

    Source: Gelman et al., "Bayesian Data Analysis", 3rd edition, section 2.6; peaks over threshold
    as in Siffer et al., "Anomaly Detection in Streams with Extreme Value Theory", KDD 2017.
    """

    window: SlidingWindow = msgspec.field(default_factory=lambda: SlidingWindow(TAIL_RECORDS))
    outliers: list[float] = []
    """The largest values of the run, in ascending order."""
    alarms: list[int] = []
    """Records since the alarms in the window, newest last."""

    def push(self, z: float, *, alarmed: bool = False) -> None:
        """Add a value in standard deviations."""
        self.window.push(z)
        if len(self.outliers) < OUTLIERS:
            insort(self.outliers, z)
        elif z > self.outliers[0]:
            insort(self.outliers, z)
            del self.outliers[0]
        if alarmed:
            self.alarms.append(0)
        if self.alarms:
            self.alarms = [age + 1 for age in self.alarms if age < TAIL_RECORDS]

    def limit(self, probability: float, prior: Prior, every: int = 1) -> float:
        """Return the value that the next one exceeds with a probability.

        Args:
            probability: far below `TAIL_SHARE`.
            prior: what is assumed of the tail.
            every: number of consecutive values that depend on each other and count as one.
        """
        ordered = self.window.ordered
        known = len(ordered) - min(FORGIVEN, len(self.alarms))
        if known <= 0:
            own, excesses = prior.threshold, 0.0
            known, count = 0, 0.0
        else:
            first = int((1 - TAIL_SHARE) * known)
            own, count = ordered[first], (known - first) / every
            excesses = (sum(ordered[first:known]) - own * (known - first)) / every
        believed = prior.weight / TAIL_SHARE
        seen = known / every
        threshold = (believed * prior.threshold + seen * own) / (believed + seen)
        total = prior.weight * prior.excess + excesses
        growth: float = (TAIL_SHARE / probability) ** (1 / (prior.weight + count))
        return max(threshold + total * (growth - 1), self.usual())

    def width(self, prior: Prior) -> float:
        """Return how far the tail begins in units of the prior's beginning, at least 1.

        It is above 1 for noise with a memory, whose neighbours differ less than distant records.
        """
        known = len(self.window)
        if known < WIDTH_RECORDS:
            return 1.0
        return max(1.0, self.window.quantile(1 - TAIL_SHARE) / prior.threshold)

    def usual(self) -> float:
        """Return the size of outliers that the run has come back from several times."""
        return OUTLIER_FACTOR * self.outliers[0] if len(self.outliers) == OUTLIERS else 0.0
