"""Detection of divergence in the first records, before there is a level to compare with."""

from __future__ import annotations

import math
from itertools import pairwise

import msgspec

RECORDS = 40
BLOW_UP = 3.0
"""Two records in a row above three times everything before, which batch noise does not cause."""
LASTING = 12
RISE = 1.3
NOISE = 8.0
"""`LASTING` records that are all 30 % above the best one and clear of the noise of neighbours."""


class ColdStart(msgspec.Struct):
    """Detects a loss that leaves its best level within the first `RECORDS` losses."""

    losses: list[float] = []
    alarmed: bool = False

    def update(self, loss: float) -> float | None:
        """Add a loss; return the level that it left, once."""
        if self.alarmed or len(self.losses) >= RECORDS:
            return None
        self.losses.append(loss)
        level = self._blown_up()
        if level is None:
            level = self._risen()
        self.alarmed = level is not None
        return level

    def _blown_up(self) -> float | None:
        if len(self.losses) < 4:
            return None
        most = max(self.losses[:-2])
        return most if most > 0 and min(self.losses[-2:]) > BLOW_UP * most else None

    def _risen(self) -> float | None:
        if len(self.losses) < LASTING + 2:
            return None
        best, last = min(self.losses[:-LASTING]), self.losses[-LASTING:]
        if best <= 0 or min(last) <= RISE * best:
            return None
        x = [math.log(loss) for loss in last]
        steps = sorted(abs(b - a) for a, b in pairwise(x))
        noise = steps[len(steps) // 2] / 0.954
        # For normal noise the median step between neighbours is 0.954 standard deviations.
        lift = sorted(x)[LASTING // 2] - math.log(best)
        return best if lift > NOISE * noise else None
