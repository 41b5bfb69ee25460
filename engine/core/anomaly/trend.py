"""Detection of divergence: slow, without a single outlier, or in the first records."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from itertools import pairwise

import msgspec

from ..sliding_window import SlidingWindow
from .tail import Prior, Tail

FAST_RECORDS = 20
FAST_QUANTILE = 0.35
"""12 of the last 20 records are above the present level, so a brief lift does not raise it.

Length-grouped batches and correlated noise lift the loss for a few records.
"""
FAST_AT = int(FAST_QUANTILE * FAST_RECORDS)
"""Index of the present level among the last records in ascending order."""
START_RECORDS = 8
"""Least number of records of the present level while the run is young."""
BEST_RECORDS = 100
BEST_QUANTILE = 0.1
"""The level is the best that the run held lately, not its median.

A loss that fell fast and turns is above its best long before it is above its median. It is a
quantile because the minimum of many levels depends on chance.
"""
LOOK_EVERY = 4
"""Records between two lifts that enter the tail."""
DEPENDENT = 5
"""Number of consecutive lifts that share records, so that they count as one."""
LAG = 6
"""Number of such lifts that wait, so that a ramp does not widen its own limit."""
LIFT_TAIL = Prior(threshold=0.9, excess=0.2, weight=8)
"""Tail of lifts of independent normal noise, a little widened."""
LEAST_LIFT = 0.18
"""A lift by a fifth, as log ratio, is a divergence if it is out of the noise."""
CLEAR_SD, CLEAR_LIFT = 12.0, 0.05
"""In a quiet run a lift of 12 standard deviations of a record is one too, from 5 % on."""
RETURNED_LIFT = 1.5
"""Largest share of the limit it exceeded that a lift counts for in the tail, once the loss is back.

So a huge lift does not hide the next one, while many of them raise the limit.
"""
HOLD_RECORDS = 100
"""Records after which a raised level counts as the usual one."""
COLD_RECORDS = 40
"""First losses of a run, in which a loss may diverge before it has a level."""
BEFORE = 2
"""Least number of losses before the blow-up."""
BLOW_UP_RECORDS, BLOW_UP = 12, 3.0
"""Two records in a row above three times everything before, which batch noise does not cause."""
LASTING_RECORDS, LASTING_RISE, LASTING_SD = 12, 1.3, 8.0
"""Twelve records in a row 30 % above the best one, clear of their own noise, and not falling."""
LEAST_BEST = 0.01
"""A best loss below this share of the first one is next to 0, where ratios say little."""

NORMAL_STEP = 0.954
"""Median absolute difference of neighbours of normal noise, in standard deviations."""


class Lift(msgspec.Struct, frozen=True):
    """A rise of the recent level over the earlier one."""

    size: float
    level: float
    """The earlier level."""
    sd: float
    """Standard deviation of a single record."""


class Trend(msgspec.Struct, dict=True):
    """Compares the level of the last records with the best one before them."""

    last: list[float] = []
    """The last values, oldest first."""
    best: SlidingWindow = msgspec.field(default_factory=lambda: SlidingWindow(BEST_RECORDS))
    """Earlier levels."""
    young: list[float] = []
    """The newest levels, whose records overlap with the present one's."""
    tail: Tail = msgspec.field(default_factory=Tail)
    """Lifts that the run has recovered from, in standard deviations of a record."""
    waiting: list[float] = []
    count: int = 0
    held: int = 0
    """Records since the divergence began; 0 without one."""
    highest: float = 0.0
    """The largest lift of the present divergence, in standard deviations of a record."""
    exceeded: float = 0.0
    """The limit that the present divergence exceeded, in standard deviations of a record."""
    sds: list[float] = []

    def __post_init__(self) -> None:
        self.ordered: list[float] = []
        """`last` in ascending order; empty while the present level needs fewer values."""

    def update(self, x: float, sd: float | None, probability: float, size: float) -> Lift | None:
        """Add a value; return its lift if a divergence begins with it, otherwise None.

        The lift is how far the recent level is above the best earlier one.

        Args:
            x: value on the scale of the channel.
            sd: standard deviation of a record; None while unknown.
            probability: accepted probability that a record is wrongly taken for the beginning.
            size: multiplies the smallest lift that can be a divergence.
        """
        now = self.take(x)
        best = self.best.ordered
        if sd is None or now is None or not best:
            return None
        sds = self.sds
        sds.append(sd)
        if len(sds) > FAST_RECORDS:
            del sds[0]
        level = best[int(BEST_QUANTILE * (len(best) - 1) + 0.5)]
        lift, sd = now - level, sds[0]
        if self.held:
            self._hold(lift, size)
            return None
        if not self.count % LOOK_EVERY:
            self.waiting.append(lift / sd)
            if len(self.waiting) > LAG:
                self.tail.push(self.waiting.pop(0))
        if lift <= CLEAR_LIFT * size:
            return None  # no bound below is smaller
        if lift <= _least_lift(sd) * size:
            return None
        limit = self.tail.limit(probability, LIFT_TAIL, DEPENDENT)
        if lift <= sd * limit:
            return None
        self.held, self.highest, self.exceeded = 1, lift / sd, limit
        return Lift(lift, level, sd)

    def take(self, x: float) -> float | None:
        """Add a value without a test; return the present level, or None with too few values."""
        self.count += 1
        ordered = self.ordered
        if ordered:
            records, last = FAST_RECORDS, self.last
            del ordered[bisect_left(ordered, last.pop(0))]
            last.append(x)
            insort(ordered, x)
            now = ordered[FAST_AT]
        else:
            self.last.append(x)
            del self.last[:-FAST_RECORDS]
            records = min(FAST_RECORDS, max(START_RECORDS, self.count // 2))
            if len(self.last) < records:
                return None
            ordered = sorted(self.last[-records:])
            now = ordered[int(FAST_QUANTILE * records)]
            if records == FAST_RECORDS:
                self.ordered = ordered
        if not self.held:
            young = self.young
            young.append(now)
            if len(young) > records:
                self.best.push(young.pop(0))
        return now

    def _hold(self, lift: float, size: float) -> None:
        """Keep the level from before the divergence until the loss has returned, or stays high.

        A lift that the run has come back from belongs to its tail, cut at `RETURNED_LIFT`.
        """
        self.held += 1
        sd = self.sds[0]
        self.highest = max(self.highest, lift / sd)
        if lift < 0.5 * _least_lift(sd) * size:
            self.held = 0
            self.tail.push(min(self.highest, RETURNED_LIFT * self.exceeded), alarmed=True)
        elif self.held > HOLD_RECORDS:
            self.relearn()

    def relearn(self) -> None:
        """Reset the level and end a divergence; the next records define a new level.

        The tail stays.
        """
        self.last.clear()
        self.ordered.clear()
        self.count = 0
        self.best.clear()
        self.young.clear()
        self.sds.clear()
        self.held = 0


def _least_lift(sd: float) -> float:
    """Return the rise of the level below which a divergence is not looked for."""
    return max(min(LEAST_LIFT, CLEAR_SD * sd), CLEAR_LIFT)


class ColdStart(msgspec.Struct):
    """Detects a loss that diverges in the first records, before there is a level to compare with.

    With sparse logging a run may reach its best loss in a single record before it diverges.
    """

    losses: list[float] = []
    alarmed: bool = False

    def update(self, loss: float) -> float | None:
        """Add a loss; return the level from which it diverged, once, else None.

        Only the first `COLD_RECORDS` losses above 0 are looked at.
        """
        if len(self.losses) >= COLD_RECORDS or self.alarmed or loss <= 0:
            return None
        self.losses.append(loss)
        left = self._blown_up()
        if left is None:
            left = self._risen()
        self.alarmed = left is not None
        return left

    def _blown_up(self) -> float | None:
        before, now = self.losses[:-2], min(self.losses[-2:])
        if len(before) < BEFORE or len(self.losses) > BLOW_UP_RECORDS:
            return None
        most, least = max(before), min(before)
        # A rise that is usual among these losses does not count.
        return most if now > most * max(BLOW_UP, most / least) else None

    def _risen(self) -> float | None:
        best = min(self.losses)
        first = self.losses.index(best)
        x = [math.log(loss) for loss in self.losses[first + 1 :]]
        half = len(x) // 2
        if not 0 < first < len(self.losses) - LASTING_RECORDS or best < LEAST_BEST * self.losses[0]:
            return None
        if sum(x[half:]) < sum(x[:half]):
            return None
        noise = sorted(abs(b - a) for a, b in pairwise(x))[half] / NORMAL_STEP
        lasting = min(x[-LASTING_RECORDS:]) > math.log(LASTING_RISE * best)
        clear = sorted(x)[half] > math.log(best) + LASTING_SD * noise
        return best if lasting and clear else None
