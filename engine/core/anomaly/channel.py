"""One watched quantity: its robust level, its noise, and how far a new value stands out."""

from __future__ import annotations

import math

import msgspec

from ..windows import Window

LEVEL_RECORDS = 21
NOISE_RECORDS = 120
HISTORY_RECORDS = 1000
WARMUP_RECORDS = 12
MIN_SD = 0.004
"""0.4 %: below that, noise is rounding."""
WINSOR_SD = 4.0
"""An outlier enters the level at most this far out, so that it cannot hide the next one."""
HISTORY_FACTOR = 1.15
HISTORY_RANK = 3


class Reading(msgspec.Struct, frozen=True):
    """A value in the light of what came before it; all in transformed units."""

    residual: float
    """Value minus level."""
    level: float
    sd: float
    tail: float
    """Residual that `HISTORY_RANK` earlier outliers already reached, with a margin on top."""
    count: int
    """Records seen before."""

    @property
    def z(self) -> float:
        """Residual in robust standard deviations."""
        return self.residual / self.sd

    def limit(self, z: float, rise: float) -> float:
        """Residual from which on the value is an outlier.

        z × noise, widened for small samples; at least `rise`, so that tiny noise alone never
        alarms; and more than this run's own tail, so that a heavy-tailed run alarms once, not
        at each of its usual outliers.
        """
        return max(z * self.sd * (1 + 6 / max(self.count, 1)), rise, self.tail)


class Channel(msgspec.Struct):
    """Level, noise and tail of one quantity, learned from the records as they come."""

    recent: Window = msgspec.field(default_factory=lambda: Window(LEVEL_RECORDS))
    residuals: Window = msgspec.field(default_factory=lambda: Window(NOISE_RECORDS))
    history: Window = msgspec.field(default_factory=lambda: Window(HISTORY_RECORDS))
    count: int = 0

    def read(self, x: float) -> Reading | None:
        """Judge a value against the past; None while there is too little of it."""
        if self.count < WARMUP_RECORDS:
            return None
        level = self.recent.median()
        rank = min(HISTORY_RANK, len(self.history))
        tail = HISTORY_FACTOR * max(self.history.ordered[-rank], 0.0)
        sd = max(self.residuals.spread(), MIN_SD)
        return Reading(x - level, level, sd, tail, self.count)

    def learn(self, x: float, reading: Reading | None) -> None:
        """Make a value part of the past."""
        self.count += 1
        if reading is not None:
            self.residuals.push(reading.residual)
            self.history.push(reading.residual)
            self.recent.push(min(x, reading.level + WINSOR_SD * reading.sd))
        else:
            if self.recent.values:
                residual = x - self.recent.median()
                self.residuals.push(residual)
                self.history.push(residual)
            self.recent.push(x)

    def relearn(self) -> None:
        """The quantity starts anew from another level; its noise and tail stay known."""
        self.recent.clear()
        self.count = 0


def to_log_like(loss: float, scale: float = 0.1) -> float:
    """asinh(loss / scale): a logarithm above `scale`, linear around zero, odd for signed losses.

    Differences are log ratios for ordinary losses; a memorised run near zero or an RL loss that
    changes sign does not blow up.
    """
    return math.asinh(loss / scale)


def from_log_like(x: float, scale: float = 0.1) -> float:
    """The inverse of `to_log_like`."""
    return scale * math.sinh(x)
