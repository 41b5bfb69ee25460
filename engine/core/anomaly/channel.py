"""Online baseline of one quantity: robust level, noise and tail, and the outlier threshold.

Values are on a scale where differences are log ratios, or nearly so.
"""

from __future__ import annotations

import functools
import math

import msgspec

from ..sliding_window import SlidingWindow, median_of
from .tail import TAIL_RECORDS, Prior, Recurrence, Tail

LEVEL_RECORDS = 21
NEAR_RECORDS = 5
"""The level is the median of the last 21 records, or of the last 5 if that is lower.

A quantity that falls fast has left the first; noise alone makes the second a little too low, which
the learned tail takes into account.
"""
NOISE_RECORDS, NOISE_EVERY = 100, 4
FRESH_RECORDS, FRESH_LAG = 15, 3
"""The noise is that of the last 100 records, or of the last 15 if that is higher: it grows while a
model memorises its data. The last 3 are left out, so that a rise does not widen its own limit.
"""
WARMUP_RECORDS = 12
"""Records after which a level is known well enough for reports and verdicts."""
FIRST_RECORDS = 6
"""Records after which values are compared with limits, which are wide at first."""
MIN_SD = 0.0015
"""Least standard deviation, 0.15 %; smaller noise is rounding in the log."""
MEDIAN_EFFICIENCY = 0.6
"""Share of the records that the noise counts for as degrees of freedom.

A median of overlapping bends is less certain than a standard deviation. Normal noise would give a
share of a quarter, but below 0.6 the limits miss a loss of 15 times the usual one at record 60.
"""
PRIOR_SD, PRIOR_WEIGHT = 0.1, 3
"""Standard deviation that is assumed before records are seen, and its worth in records."""
QUANTILE_SD = 3.6
"""Standard deviations that normal noise exceeds once in 6,000 records, the usual rate."""
WINSOR_SD = 4.0
"""Standard deviations at which a value is cut before it enters the level.

An outlier then cannot hide the next one, while a true shift is absorbed within about half of
`LEVEL_RECORDS`.
"""
SLOPE_RECORDS = 5
NORMAL_BEND = 1.12
"""Median absolute bend of normal noise, in standard deviations."""
NORMAL_SD = 4.0
EXCURSION_SD = 2.0
"""Residuals above this after an alarm belong to the same excursion."""
GROWN_RISE = math.log(2)
"""Rise above the value that raised an alarm from which an excursion is reported again."""
QUIET_RECORDS = 10
"""Records without further alarms after an alarm, so that one excursion raises one alarm."""
RECORD_TAIL = Prior(threshold=1.28, excess=0.5, weight=10)
"""Tail of single records: a little heavier than normal noise, as losses of batches are."""
LIGHTEST_TAIL = Prior(threshold=1.28, excess=0.6, weight=0)
"""No tail is taken for lighter than this one: the next hard batch is not in it yet."""
PEAK_SD = 5.1
"""Standard deviations that noise with this tail exceeds once in 6,000 records, the usual rate.

A rise above it that is large enough for an alarm is a peak of the run, whether or not it raises
one.
"""


class Reading(msgspec.Struct, frozen=True, gc=False):
    """A value compared with the records before it."""

    residual: float
    """Value minus level."""
    level: float
    sd: float
    """Standard deviation of a record at present."""
    level_sd: float
    """The same over a longer time and between distant records, to compare levels by."""

    @property
    def z(self) -> float:
        """Return the residual in robust standard deviations."""
        return self.residual / self.sd


class Signal(msgspec.Struct):
    """Level, noise and tail of one quantity, updated with every record."""

    recent: SlidingWindow = msgspec.field(default_factory=lambda: SlidingWindow(LEVEL_RECORDS))
    bends: SlidingWindow = msgspec.field(default_factory=lambda: SlidingWindow(NOISE_RECORDS))
    """Absolute bends: differences of neighbours less the usual difference, which is the trend.

    Equal neighbours are left out: a value that is logged twice is not noise, and one that is
    rounded to the value before it hides some.
    """
    slopes: list[float] = []
    """The last differences, whose median is the usual one."""
    known_sds: list[float] | None = None
    """The standard deviations for a record and for levels, as last looked up."""
    tail: Tail = msgspec.field(default_factory=Tail)
    recurrence: Recurrence = msgspec.field(default_factory=Recurrence)
    """The peaks of the run so far."""
    count: int = 0
    quiet: int = 0
    """Remaining records for which no further alarm is raised."""
    peak: float = 0.0
    """The value that raised the last alarm."""
    last: float | None = None
    """The value before; a falling value, even far above the level, starts no excursion."""

    def read(self, x: float, noisier: float = 1.0) -> Reading | None:
        """Compare a value with the baseline; return None while there are too few records for one.

        Args:
            x: the value.
            noisier: factor on the standard deviation of this record.
        """
        count = self.count
        if count < FIRST_RECORDS:
            return None
        recent = self.recent
        ordered, near = recent.ordered, recent.values[-NEAR_RECORDS:]
        near.sort()
        full = len(ordered) == LEVEL_RECORDS
        level = ordered[LEVEL_RECORDS // 2] if full else median_of(ordered)
        low = near[NEAR_RECORDS // 2]
        if low < level:
            level = low
        known = self.known_sds
        if known is None or not count % NOISE_EVERY or count < FRESH_RECORDS:
            known = self.sds()
        sd, level_sd = known
        return Reading(x - level, level, noisier * sd, level_sd)

    def sds(self) -> list[float]:
        """Return the standard deviation of a record, and the one to compare levels by.

        They change slowly, so after the first `FRESH_RECORDS` records they are computed again only
        every `NOISE_EVERY` records.
        """
        known, count = self.known_sds, self.count
        if known is None or not count % NOISE_EVERY or count < FRESH_RECORDS:
            known = self.known_sds = self._sds()
        return known

    def _sds(self) -> list[float]:
        wide = self.tail.width(RECORD_TAIL) * self._widening()
        bends = self.bends.ordered
        count = len(bends)
        if not count:
            return [PRIOR_SD, PRIOR_SD * wide]
        long = _shrunk(median_of(bends) / NORMAL_BEND, count)
        values = self.bends.values
        fresh = values[-FRESH_RECORDS - FRESH_LAG : -FRESH_LAG] or values[:]
        fresh.sort()
        near = _shrunk(fresh[len(fresh) // 2] / NORMAL_BEND, count)
        return [near if near > long else long, long * wide]

    def _widening(self) -> float:
        """Return the factor by which limits widen while noise and tail come from few records.

        It is the ratio of Student's to the normal quantile. The degrees of freedom are the records
        of the tail, because its residuals include the error of the noise, times the efficiency of
        that estimate.

        Source: the approximation of Wallace, "Bounds on normal approximations to Student's and the
        chi-square distributions", Annals of Mathematical Statistics 30, 1959.
        """
        return _student_ratio(len(self.tail.window.values))

    def limit(self, sd: float, probability: float) -> float:
        """Return the residual that the next value exceeds with this probability, by the tail.

        It is at least the limit by the tail `LIGHTEST_TAIL`.

        Args:
            sd: standard deviation of a record.
            probability: probability of a larger residual.
        """
        limit = max(
            self.tail.limit(probability, RECORD_TAIL), LIGHTEST_TAIL.upper_quantile(probability)
        )
        return sd * self._widening() * limit

    def normal_limit(self, sd: float) -> float:
        """Return the residual that normal noise exceeds once in 30,000 records.

        `sd` is the standard deviation of a record.
        """
        return NORMAL_SD * sd * self.tail.width(RECORD_TAIL)

    def known_limit(self, sd: float, least: float, probability: float) -> float:
        """Return the residual up to which a peak is one of those that the run has come back from.

        Args:
            sd: standard deviation of a record.
            least: least rise of an alarm.
            probability: probability of a larger residual, if peaks recur.
        """
        largest = self.recurrence.largest_usual(probability)
        usual = self._peak_limit(sd, least) + largest if largest else 0.0
        return max(self.tail.outlier_limit(sd), usual)

    def _peak_limit(self, sd: float, least: float) -> float:
        return max(PEAK_SD * sd * self._widening(), least)

    def peak_again(self, reading: Reading, least: float, probability: float) -> bool:
        """Whether a value is one more peak of a run that had an alarm, and is to be reported.

        Args:
            reading: the value.
            least: least rise of an alarm.
            probability: rate per record above which peaks recur.
        """
        if not self.tail.alarms_in_all or not self.recurrence.news(probability):
            return False
        return reading.residual > self._peak_limit(reading.sd, least)

    def takes_alarms(self, x: float) -> bool:
        """Return whether a value may raise an alarm.

        It must be above the value before it, if there is one. Within `QUIET_RECORDS` records of an
        alarm it must instead be more than `GROWN_RISE` above the value that raised the alarm.
        """
        if self.quiet:
            return x > self.peak + GROWN_RISE
        return self.last is None or x > self.last

    def learn(
        self, x: float, reading: Reading | None, *, alarmed: bool = False, least: float = math.inf
    ) -> None:
        """Update the baseline with a value.

        A value that is still far out after an alarm belongs to the same excursion: it moves the
        level, but is neither noise nor one more outlier.

        Args:
            x: the value.
            reading: the value as `read` compared it, or None if there was no baseline yet.
            alarmed: whether it raised an alarm.
            least: least rise of an alarm; infinite if the value is clearly below it.
        """
        self.count += 1
        last, self.last = self.last, x
        bend = self._bend(x - last) if last is not None and x != last else None
        quiet = self.quiet
        if alarmed:
            self.peak, self.quiet = x, QUIET_RECORDS
        elif quiet:
            self.quiet = quiet - 1
        if reading is None:
            if bend is not None:
                self.bends.push(bend)
            self.recent.push(x)
            return
        residual, sd = reading.residual, reading.sd
        if residual > least:
            self._add_peak(residual - self._peak_limit(sd, least), rises=last is None or x > last)
        else:
            self.recurrence.push(0.0)
        if not (quiet and residual > EXCURSION_SD * sd):
            self.tail.push(residual / sd, sd, alarmed)
            if bend is not None and not alarmed:
                self.bends.push(bend)
        most = reading.level + WINSOR_SD * sd
        self.recent.push(x if x < most else most)

    def _add_peak(self, size: float, *, rises: bool) -> None:
        """Add a value that exceeds the limit of peaks by `size`; a falling one begins none."""
        recurrence = self.recurrence
        recurrence.push(size if rises or not recurrence.begins else 0.0)

    def _bend(self, slope: float) -> float | None:
        """Add the difference of two consecutive values; return its distance from the usual one.

        The distance is None for the first difference.
        """
        slopes = self.slopes
        count = len(slopes)
        bend = abs(slope - sorted(slopes)[count // 2]) if count else None
        if count == SLOPE_RECORDS:
            del slopes[0]
        slopes.append(slope)
        return bend

    def relearn(self) -> None:
        """Reset the level; keep the estimates of noise and tail.

        `read` returns None until `FIRST_RECORDS` new values are known.
        """
        self.recent.clear()
        self.count = 0
        self.last = None
        self.slopes.clear()


def _shrunk(sd: float, count: int) -> float:
    """Return the noise `sd`, which was estimated from `count` bends, but at least `MIN_SD`.

    With fewer than `NOISE_RECORDS` bends it is shrunk towards `PRIOR_SD`.
    """
    if count < NOISE_RECORDS:
        square = (PRIOR_WEIGHT * PRIOR_SD**2 + count * sd**2) / (PRIOR_WEIGHT + count)
        sd = math.sqrt(square)
    return max(sd, MIN_SD)


@functools.lru_cache(maxsize=2 * TAIL_RECORDS)
def _student_ratio(records: int) -> float:
    """Return the ratio of Student's to the normal quantile for noise known from these records."""
    freedom = PRIOR_WEIGHT + MEDIAN_EFFICIENCY * records
    return math.sqrt(freedom * math.expm1(QUANTILE_SD**2 / freedom)) / QUANTILE_SD
