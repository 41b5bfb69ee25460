"""Upper tail of a noisy quantity: the value that is exceeded with a given small probability."""

from __future__ import annotations

import math

import msgspec

from ..sliding_window import UpperWindow

TAIL_RECORDS = 1000
TAIL_SHARE = 0.1
"""Share of the values that make the tail; the value at its beginning is the threshold."""
WIDTH_RECORDS = 40
"""Values from which the beginning of the tail is known."""
OUTLIER_FACTOR = 1.25
"""A value must exceed every other of the whole run, but for the last alarm, by a quarter.

What a run has come back from once may have been an event; what it has come back from twice belongs
to it. So the outliers of a heavy tail raise few alarms, however long the run is.
"""
RECURRING = 4
"""Number of alarms of a run from which its outliers count as recurring."""
RECURRING_FACTOR = 2.0
"""A value must then exceed every other of the run twice, the last alarm included.

Of outliers whose sizes have an exponential tail, the next one exceeds the largest of k by a factor
c with probability k ** -c. With a quarter, about five of a run would raise an alarm, with this
factor hardly one more. A blow-up that lasts is found as a divergence all the same.
"""
FORGIVEN = 1
"""Number of alarms in the window that are left out of the tail, because they are events, not noise.

Further alarms enter the tail: a run that has outliers again and again has a heavy tail.
"""


class Prior(msgspec.Struct, frozen=True):
    """Prior of the tail parameters, in standard deviations of a record."""

    threshold: float
    excess: float
    """Mean excess over the threshold."""
    weight: float
    """Prior sample size: the number of values in the tail that the prior counts for."""

    def upper_quantile(self, probability: float) -> float:
        """Return the value that the next one exceeds with this probability, by the prior alone."""
        return self.threshold + self.excess * math.log(TAIL_SHARE / probability)


class Tail(msgspec.Struct):
    """Exponential tail above the 90 % quantile of the last values, with an uncertain mean excess.

    A gamma distribution of the inverse mean excess is the conjugate prior, so the predictive
    distribution of the next excess e is P(> e) = (1 + e / sum) ** -count, where sum and count of
    the excesses include those of the prior: wide at first, narrower as records come.

    Source: Gelman et al., "Bayesian Data Analysis", 3rd edition, section 2.6; peaks over threshold
    as in Siffer et al., "Anomaly Detection in Streams with Extreme Value Theory", KDD 2017.
    """

    window: UpperWindow = msgspec.field(default_factory=lambda: UpperWindow(TAIL_RECORDS))
    largest: float = 0.0
    """The largest value of the run but for the last alarm, which may be its first event."""
    largest_residual: float = 0.0
    """The same as residual, which does not depend on an estimate of the noise."""
    last_alarm: float = 0.0
    last_alarm_residual: float = 0.0
    alarms: list[int] = []
    """Records since the alarms in the window, newest last."""
    alarms_in_all: int = 0
    """Alarms of the whole run."""

    def push(self, z: float, sd: float = 1.0, alarmed: bool = False) -> None:
        """Add the value `z`, in standard deviations `sd` of a record.

        A value that raised an alarm can be the largest one only after the next alarm.
        """
        self.window.push(z)
        residual = z * sd
        if alarmed:
            z, self.last_alarm = self.last_alarm, z
            residual, self.last_alarm_residual = self.last_alarm_residual, residual
            self.alarms.append(0)
            self.alarms_in_all += 1
        if z > 0:
            if z > self.largest:
                self.largest = z
            if residual > self.largest_residual:
                self.largest_residual = residual
        if self.alarms:
            self.alarms = [age + 1 for age in self.alarms if age < TAIL_RECORDS]

    def limit(self, probability: float, prior: Prior, every: int = 1) -> float:
        """Return the value, in standard deviations, that the next exceeds with this probability.

        Args:
            probability: far below `TAIL_SHARE`.
            prior: what is assumed of the tail.
            every: number of consecutive values that depend on each other and count as one.
        """
        forgiven = min(FORGIVEN, len(self.alarms))
        known = len(self.window.values) - forgiven
        if known <= 0:
            own, excesses = prior.threshold, 0.0
            known, count = 0, 0.0
        else:
            first = int((1 - TAIL_SHARE) * known)
            most = known + forgiven - first
            highest = self.window.highest_of(most)[-most:]
            own, count = highest[0], (known - first) / every
            excesses = (sum(highest[: known - first]) - own * (known - first)) / every
        believed = prior.weight / TAIL_SHARE
        seen = known / every
        threshold = (believed * prior.threshold + seen * own) / (believed + seen)
        total = prior.weight * prior.excess + excesses
        growth: float = (TAIL_SHARE / probability) ** (1 / (prior.weight + count))
        return threshold + total * (growth - 1)

    def width(self, prior: Prior) -> float:
        """Return the threshold of the tail divided by the threshold of the prior, at least 1.

        It is 1 while there are few values. It is above 1 for autocorrelated noise: neighbouring
        records then differ less than distant ones, so the standard deviation, which is estimated
        from neighbours, is too small.
        """
        count = len(self.window.values)
        if count < WIDTH_RECORDS:
            return 1.0
        count -= int((1 - TAIL_SHARE) * count)
        wide = self.window.highest_of(count)[-count] / prior.threshold
        return wide if wide > 1.0 else 1.0

    def outlier_limit(self, sd: float = 1.0) -> float:
        """Return the residual above which a value is an outlier, by the run's own earlier ones.

        Outliers are compared in standard deviations and as residuals; the smaller limit counts,
        because the outlier of a batch does not grow with the noise.
        """
        if self.alarms_in_all < RECURRING:
            return OUTLIER_FACTOR * min(self.largest * sd, self.largest_residual)
        largest = max(self.largest, self.last_alarm)
        residual = max(self.largest_residual, self.last_alarm_residual)
        return RECURRING_FACTOR * min(largest * sd, residual)
