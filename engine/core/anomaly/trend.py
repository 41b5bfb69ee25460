"""Slow trouble: the loss climbs away from where it was, without one record that stands out."""

from __future__ import annotations

import math

import msgspec

from ..sliding_window import SlidingWindow
from .channel import TAIL_RANK

FAST_RECORDS = 8
SLOW_RECORDS = 40
OLDER_RECORDS = 100
MIN_PAST = 12
MIN_LIFTS = 20
LAG_RECORDS = 24
"""The noise of the lift is learned this much later, so that a ramp does not widen its own limit."""
LIFT_Z = 4.0
LIFT_TAIL = 1.3
"""A lift must beat by 30 % what this run has shown and come back from."""
LIFT_RISE = math.log(1.2)
"""A fifth above the level is serious in any run …"""
LIFT_SD = 8.0
LIFT_MIN = 0.025
"""… and in a quiet run already eight standard deviations of a record, but at least 2.5 %."""
BEST_RECORDS = 60
BEST_QUANTILE = 0.1
"""The level is the best the run has held lately, not its middle: a loss that was falling fast and
turns is above its best long before it is above its median. The quantile, not the minimum, because
the minimum of many medians is luck."""
HOLD_RECORDS = 100
"""After this long the new level is the level."""


class Lift(msgspec.Struct, frozen=True):
    """The recent level over the earlier one."""

    size: float
    level: float
    """The earlier level."""
    sd: float
    """Noise of a single record."""


class Trend(msgspec.Struct):
    """Compares the median of the last records with the best level before them."""

    fast: SlidingWindow = msgspec.field(default_factory=lambda: SlidingWindow(FAST_RECORDS))
    slow: SlidingWindow = msgspec.field(default_factory=lambda: SlidingWindow(SLOW_RECORDS))
    older: SlidingWindow = msgspec.field(default_factory=lambda: SlidingWindow(OLDER_RECORDS))
    noise: list[float] = []
    """Standard deviations of single records, oldest first."""
    lifts: SlidingWindow = msgspec.field(default_factory=lambda: SlidingWindow(120))
    waiting: list[float] = []
    """The newest lifts, not yet in `lifts`."""
    medians: SlidingWindow = msgspec.field(default_factory=lambda: SlidingWindow(BEST_RECORDS))
    """Of `fast`, as it went along; `young` are the newest ones, which still overlap with it."""
    young: list[float] = []
    held: int = 0
    """Records since the divergence began; 0 when there is none."""

    def update(self, x: float, sd: float | None, strictness: float) -> Lift | None:
        """Take a value in; returns the lift in the record where a divergence begins.

        Args:
            x: value on the scale of the channel.
            sd: its noise; None while unknown.
            strictness: factor on the limits.
        """
        now = self.take(x)
        if sd is None or len(self.slow.ordered) < MIN_PAST:
            return None
        self.noise.append(sd)
        del self.noise[:-SLOW_RECORDS]
        level = self._level()
        size = now - level
        if self.held:
            self._hold(size, strictness)
            return None
        self.waiting.append(size)
        if len(self.waiting) > LAG_RECORDS:
            self.lifts.push(self.waiting.pop(0))
        if size <= LIFT_MIN * strictness or size <= self._limit(strictness):
            return None
        if now <= self.slow.quantile(0.98):
            return None
        self.held = 1
        return Lift(size, level, self.noise[0])

    def take(self, x: float) -> float:
        """Learn a value without judging it; returns the median of the last ones."""
        fallen = self.fast.push(x)
        now = self.fast.median()
        if fallen is None or self.held:
            return now
        self.young.append(now)
        if len(self.young) > FAST_RECORDS:
            self.medians.push(self.young.pop(0))
        fallen = self.slow.push(fallen)
        if fallen is not None:
            self.older.push(fallen)
        return now

    def _level(self) -> float:
        level = self.slow.median()
        if len(self.medians.ordered) >= MIN_LIFTS:
            level = min(level, self.medians.quantile(BEST_QUANTILE))
        return min(level, self.older.median()) if len(self.older.ordered) >= MIN_LIFTS else level

    def _limit(self, strictness: float) -> float:
        sd = self.noise[0]
        spread, tail = sd, 0.0
        if len(self.lifts) >= MIN_LIFTS:
            spread, tail = self.lifts.spread(), self.lifts.ordered[-TAIL_RANK]
        rise = max(min(LIFT_RISE, LIFT_SD * sd), LIFT_MIN)
        return max(max(LIFT_Z * spread, rise) * strictness, LIFT_TAIL * tail)

    def _hold(self, size: float, strictness: float) -> None:
        """Keep the level from before the divergence until the loss is back or stays for good."""
        self.held += 1
        if size < 0.5 * self._limit(strictness):
            self.held = 0
        elif self.held > HOLD_RECORDS:
            self.relearn()

    def relearn(self) -> None:
        """The level starts anew."""
        self.fast.clear()
        self.slow.clear()
        self.older.clear()
        self.medians.clear()
        self.young.clear()
        self.held = 0
