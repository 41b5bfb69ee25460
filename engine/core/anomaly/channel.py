"""One watched quantity: its robust level, its noise, its tail, and how far a new value stands out.

Quantities are watched on a scale where differences are (nearly) log ratios.
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
"""0.15 %: below that, noise is rounding in the log."""
WINSOR_SD = 4.0
"""An outlier enters the level at most this far out, so that it cannot hide the next one, while a
true shift is absorbed within about half of `LEVEL_RECORDS`."""
NORMAL_MEAN_SIZE = 1.2533
"""Standard deviation over mean size, of normal noise."""
TAIL_RANK = 3
"""The tail is the third largest residual: two outliers alike may both alarm, the fourth not."""
SMALL_SD = 6.0
"""Few records understate the noise: from n records it is taken to be larger by this over n."""
EXCURSION_SD = 2.0
QUIET_RECORDS = 10
"""After an alarm the channel is silent for this long: one excursion, one alarm."""


class Way(msgspec.Struct, frozen=True):
    """One way to be an outlier: far out of the noise, of notable size, and beyond the run's tail.

    All three must hold. The first keeps noise out, the second changes too small to matter, the
    third makes a heavy-tailed run alarm at its first outliers and not at every later one.
    """

    z: float
    """Robust standard deviations."""
    rise: float
    """Log ratio."""
    tail: float
    """Multiple of the tail."""
    records: int = 0
    """The level was learned from so many at least."""


class Reading(msgspec.Struct, frozen=True):
    """A value in the light of what came before it."""

    residual: float
    """Value minus level."""
    level: float
    sd: float
    tail: float
    """Size of the largest usual outliers so far; at least 0."""
    count: int
    """Records the level was learned from."""

    @property
    def z(self) -> float:
        """Residual in robust standard deviations."""
        return self.residual / self.sd

    def limit(self, ways: tuple[Way, ...], strictness: float) -> float:
        """Residual from which on the value is an outlier in one of these ways."""
        noise = self.sd * (1 + SMALL_SD / max(self.count, 1)) * strictness
        lowest = math.inf
        for way in ways:
            if self.count < way.records:
                continue
            limit = max(way.z * noise, way.rise * strictness, way.tail * self.tail)
            lowest = min(lowest, limit)
        return lowest


class Signal(msgspec.Struct):
    """Level, noise and tail of one quantity, learned from the records as they come."""

    recent: SlidingWindow = msgspec.field(default_factory=lambda: SlidingWindow(LEVEL_RECORDS))
    residuals: SlidingWindow = msgspec.field(default_factory=lambda: SlidingWindow(NOISE_RECORDS))
    outliers: SlidingWindow = msgspec.field(default_factory=lambda: SlidingWindow(TAIL_RECORDS))
    count: int = 0
    quiet: int = 0
    """Records for which no further alarm is raised."""
    last: float | None = None
    """The value before: what falls, be it from far above, is no new excursion."""

    def read(self, x: float) -> Reading | None:
        """Judge a value against the past; None while there is too little of it."""
        if self.count < WARMUP_RECORDS:
            return None
        level = self.recent.median()
        outliers = self.outliers.ordered
        tail = max(outliers[-min(TAIL_RANK, len(outliers))], 0.0) if outliers else 0.0
        spread = self.residuals.spread() or self._mean_size()
        return Reading(x - level, level, max(spread, MIN_SD), tail, self.count)

    def _mean_size(self) -> float:
        """Noise where most values are the same, as of a rounded or idle quantity.

        The middle half says nothing there.
        """
        values = self.residuals.values
        return NORMAL_MEAN_SIZE * sum(map(abs, values)) / len(values)

    def rises(self, x: float) -> bool:
        """Whether a value is above the one before it."""
        return self.last is None or x > self.last

    def learn(self, x: float, reading: Reading | None, *, alarmed: bool = False) -> None:
        """Make a value part of the past; `alarmed` when it raised an alarm.

        What follows an alarm and is still far out belongs to the same excursion: it moves the
        level, but counts neither as noise nor as one more outlier.
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
        """The level starts anew; noise and tail stay known."""
        self.recent.clear()
        self.count = 0
