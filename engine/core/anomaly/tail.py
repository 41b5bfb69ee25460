"""Upper tail of a noisy quantity: values with a small probability of more, and recurring peaks."""

from __future__ import annotations

import math

import msgspec

from ...protocol.thresholds import RECURRENCE_NEWS
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
FORGIVEN = 1
"""Number of alarms in the window that are left out of the tail, because they are events, not noise.

Further alarms enter the tail: a run that has outliers again and again has a heavy tail. Of peaks
that may recur, the newest is left out for the same reason.
"""
PEAK_RECORDS = 10
"""Outliers with fewer records between them are one peak."""
PRIOR_PEAKS = 1
"""Number of peaks of the usual size that the prior of their mean size is worth."""
CERTAIN_SD = 0.84
"""Peaks recur if their rate is high enough with 80 % certainty, a one-sided normal quantile."""


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
        return OUTLIER_FACTOR * min(self.largest * sd, self.largest_residual)


class Recurrence(msgspec.Struct):
    """Peaks of a run as a Poisson process whose sizes have an exponential tail.

    What the run has come back from again and again is a state of the run, not news. The next peak
    is news only if this process exceeds its size as rarely as noise may raise a false alarm. Rate
    and mean size have uncertain values: for the rate, the lower limit of its confidence interval
    counts, so few peaks suppress nothing; the mean size has a conjugate prior worth one peak of
    usual size, as in `Tail`.

    Source: peaks over threshold with a Poisson rate, as in Coles, "An Introduction to Statistical
    Modeling of Extreme Values", 2001, sections 4.2 and 7.3.
    """

    peaks: int = 0
    total: float = 0.0
    """Sum of the sizes of the peaks: how far each exceeded the limit of ordinary noise."""
    newest: float = 0.0
    """Size of the newest peak, which may still grow."""
    records: int = 0
    since: int = PEAK_RECORDS
    """Records since the newest peak, at most `PEAK_RECORDS`."""
    told: int = 0
    """The number of peaks when they were last reported as recurring; 0 before that."""

    @property
    def begins(self) -> bool:
        """Whether an outlier now would begin a peak, and not belong to the newest one."""
        return self.since >= PEAK_RECORDS

    def push(self, size: float) -> None:
        """Add a record by how far it exceeds the limit of ordinary noise; 0 or less if it does not.

        A record after a peak that is higher than the peak makes it larger.
        """
        self.records += 1
        if size <= 0:
            if self.since < PEAK_RECORDS:
                self.since += 1
            return
        if self.begins:
            self.peaks += 1
            self.newest = 0.0
        if size > self.newest:
            self.total += size - self.newest
            self.newest = size
        self.since = 0

    def news(self, probability: float) -> bool:
        """Whether one more peak, which begins now, is reported: they recur, and many are new."""
        grown = self.peaks + 1 >= RECURRENCE_NEWS * self.told
        return self.begins and grown and self.recurs(probability)

    def recurs(self, probability: float) -> bool:
        """Whether peaks are certainly more frequent than this probability per record."""
        return self._rate() > probability

    def largest_usual(self, probability: float) -> float:
        """Return the size that a peak of the next record exceeds with this probability.

        It is 0 if peaks do not certainly recur more often than that.
        """
        rate = self._rate()
        if rate <= probability:
            return 0.0
        known = self.peaks - FORGIVEN
        total = (self.total - self.newest) * (known + PRIOR_PEAKS) / known
        growth: float = (rate / probability) ** (1 / (known + PRIOR_PEAKS))
        return total * (growth - 1)

    def _rate(self) -> float:
        """Return the lower limit of the number of peaks per record.

        Source: the approximation of Wilson and Hilferty to quantiles of the gamma distribution.
        """
        count = self.peaks - FORGIVEN
        if count <= 0:
            return 0.0
        lower = count * max(0.0, 1 - 1 / (9 * count) - CERTAIN_SD / (3 * count**0.5)) ** 3
        rate: float = lower / self.records
        return rate
