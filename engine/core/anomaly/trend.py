"""Detection of slow divergence, in which the loss climbs without a single outlier."""

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
"""Delay in records before a lift enters the noise, so that a ramp does not widen its own limit."""
LIFT_Z = 4.0
LIFT_TAIL = 1.3
"""A lift must exceed by 30 % the largest ones that this run has recovered from."""
LIFT_RISE = math.log(1.2)
"""A lift by a fifth is serious in any run."""
LIFT_SD = 8.0
LIFT_MIN = 0.025
"""In a quiet run a lift of eight standard deviations of a record is serious, from 2.5 % on."""
BEST_RECORDS = 60
BEST_QUANTILE = 0.1
"""The level is the best that the run held lately, not its median.

A loss that fell fast and turns is above its best long before it is above its median. It is a
quantile because the minimum of many medians depends on chance.
"""
HOLD_RECORDS = 100
"""Records after which a raised level counts as the usual one."""


class Lift(msgspec.Struct, frozen=True):
    """A rise of the recent level over the earlier one."""

    size: float
    level: float
    """The earlier level."""
    sd: float
    """Standard deviation of a single record."""


class Trend(msgspec.Struct):
    """Compares the median of the last records with the best level before them."""

    fast: SlidingWindow = msgspec.field(default_factory=lambda: SlidingWindow(FAST_RECORDS))
    slow: SlidingWindow = msgspec.field(default_factory=lambda: SlidingWindow(SLOW_RECORDS))
    older: SlidingWindow = msgspec.field(default_factory=lambda: SlidingWindow(OLDER_RECORDS))
    noise: list[float] = []
    """Standard deviations of single records, oldest first."""
    lifts: SlidingWindow = msgspec.field(default_factory=lambda: SlidingWindow(120))
    waiting: list[float] = []
    """The newest lifts, which are not in `lifts` yet."""
    medians: SlidingWindow = msgspec.field(default_factory=lambda: SlidingWindow(BEST_RECORDS))
    """Earlier medians of `fast`."""
    young: list[float] = []
    """The newest medians, whose records still overlap with `fast`."""
    held: int = 0
    """Records since the divergence began; 0 without one."""

    def update(self, x: float, sd: float | None, strictness: float) -> Lift | None:
        """Add a value; return the lift in the record where a divergence begins.

        Args:
            x: value on the scale of the channel.
            sd: standard deviation of a record; None while unknown.
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
        """Add a value without judging it; return the median of the last ones."""
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
        """Keep the level from before the divergence until the loss is back, or up for too long."""
        self.held += 1
        if size < 0.5 * self._limit(strictness):
            self.held = 0
        elif self.held > HOLD_RECORDS:
            self.relearn()

    def relearn(self) -> None:
        """Forget the learned level, so that the next records define a new one."""
        self.fast.clear()
        self.slow.clear()
        self.older.clear()
        self.medians.clear()
        self.young.clear()
        self.held = 0
