"""One monitored quantity: its robust level, noise and tail, and the limits for outliers.

Values are on a scale where differences are log ratios, or nearly so.
"""

from __future__ import annotations

import math

import msgspec

from ..sliding_window import SlidingWindow

LEVEL_RECORDS = 21
NOISE_RECORDS = 120
TAIL_RECORDS = 1000
WARMUP_RECORDS = 12
MIN_SD = 0.0015
"""Least standard deviation, 0.15 %; smaller noise is rounding in the log."""
WINSOR_SD = 4.0
"""Standard deviations at which a value is cut before it enters the level.

An outlier then cannot hide the next one, while a true shift is absorbed within about half of
`LEVEL_RECORDS`.
"""
NORMAL_MEAN_SIZE = 1.2533
"""Ratio of standard deviation to mean absolute value of normal noise."""
TAIL_RANK = 3
"""The tail is the third largest residual: two similar outliers may both alarm, a fourth may not."""
SMALL_SD = 6.0
"""Correction for few records, which understate the noise: n records widen it by this over n."""
EXCURSION_SD = 2.0
"""Residuals above this after an alarm belong to the same excursion."""
QUIET_RECORDS = 10
"""Records without further alarms after an alarm, so that one excursion raises one alarm."""


class Way(msgspec.Struct, frozen=True):
    """One rule for outliers: far outside the noise, of notable size, and beyond the run's tail.

    All three conditions must hold. The first excludes noise, the second changes too small to
    matter; the third makes a heavy-tailed run alarm at its first outliers and not at every one.
    """

    z: float
    """Least distance from the level, in robust standard deviations."""
    rise: float
    """Least distance from the level, as a log ratio."""
    tail: float
    """Least distance from the level, as a multiple of the tail."""
    records: int = 0
    """The rule needs a level learned from at least this many records."""


class Reading(msgspec.Struct, frozen=True):
    """A value compared with the records before it."""

    residual: float
    """Value minus level."""
    level: float
    sd: float
    tail: float
    """Size of the largest usual outliers so far, at least 0."""
    count: int
    """Number of records the level was learned from."""

    @property
    def z(self) -> float:
        """Return the residual in robust standard deviations."""
        return self.residual / self.sd

    def limit(self, ways: tuple[Way, ...], strictness: float) -> float:
        """Return the smallest residual that is an outlier by one of the rules."""
        noise = self.sd * (1 + SMALL_SD / max(self.count, 1)) * strictness
        lowest = math.inf
        for way in ways:
            if self.count < way.records:
                continue
            limit = max(way.z * noise, way.rise * strictness, way.tail * self.tail)
            lowest = min(lowest, limit)
        return lowest


class Signal(msgspec.Struct):
    """Level, noise and tail of one quantity, updated with every record."""

    recent: SlidingWindow = msgspec.field(default_factory=lambda: SlidingWindow(LEVEL_RECORDS))
    residuals: SlidingWindow = msgspec.field(default_factory=lambda: SlidingWindow(NOISE_RECORDS))
    outliers: SlidingWindow = msgspec.field(default_factory=lambda: SlidingWindow(TAIL_RECORDS))
    count: int = 0
    quiet: int = 0
    """Remaining records for which no further alarm is raised."""
    last: float | None = None
    """The value before; a falling value, even far above the level, starts no excursion."""

    def read(self, x: float) -> Reading | None:
        """Compare a value with the past; return None while there are too few records."""
        if self.count < WARMUP_RECORDS:
            return None
        level = self.recent.median()
        outliers = self.outliers.ordered
        tail = max(outliers[-min(TAIL_RANK, len(outliers))], 0.0) if outliers else 0.0
        spread = self.residuals.spread() or self._mean_size()
        return Reading(x - level, level, max(spread, MIN_SD), tail, self.count)

    def _mean_size(self) -> float:
        """Return the noise of a quantity with mostly equal values, such as a rounded or idle one.

        Its interquartile range is 0.
        """
        values = self.residuals.values
        return NORMAL_MEAN_SIZE * sum(map(abs, values)) / len(values)

    def rises(self, x: float) -> bool:
        """Return whether a value is above the one before it."""
        return self.last is None or x > self.last

    def learn(self, x: float, reading: Reading | None, *, alarmed: bool = False) -> None:
        """Add a value to the past.

        A value that is still far out after an alarm belongs to the same excursion: it moves the
        level, but is neither noise nor one more outlier.

        Args:
            x: the value.
            reading: its comparison with the past, as `read` returned it.
            alarmed: whether it raised an alarm.
        """
        self.count += 1
        self.last = x
        excursion = self.quiet > 0
        self.quiet = QUIET_RECORDS if alarmed else max(self.quiet - 1, 0)
        if reading is None:
            self._settle(x)
            return
        if not (excursion and reading.residual > EXCURSION_SD * reading.sd):
            self.residuals.push(reading.residual)
            self.outliers.push(reading.residual)
        self.recent.push(min(x, reading.level + WINSOR_SD * reading.sd))

    def _settle(self, x: float) -> None:
        if len(self.recent):
            residual = x - self.recent.median()
            self.residuals.push(residual)
        self.recent.push(x)

    def relearn(self) -> None:
        """Forget the level; keep noise and tail."""
        self.recent.clear()
        self.count = 0
