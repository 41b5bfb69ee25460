"""The scale on which the detector compares losses: asinh(loss / unit), logarithmic if large."""

from __future__ import annotations

import math

import msgspec

SEEN_RECORDS = 12
"""Losses before the unit is set; enough to see a change of sign, and a channel needs as many."""
NEAR_ZERO = 1e-3
"""Share of the first losses below which a loss counts as zero and the scale is linear."""
FIRST_LOSSES = 1.0
"""The same share for losses that go from chance to zero, as in preference training.

Their noise is proportional to the first losses, not to the level: a preference that the model gets
right costs almost nothing, a wrong one as much as at the start.
"""
SIGNED_SD = 10.0
"""Unit of a loss that changes sign, as in reinforcement learning: ten standard deviations."""
SIGNED_LARGEST = 3.0
"""Unit of such a loss if most values are exactly 0: three times the largest one."""


class Scale(msgspec.Struct):
    """The scale asinh(loss / unit): a logarithm far above the unit, linear around zero, odd.

    The unit comes from the run, so a constant factor on the loss changes nothing.
    """

    seen: list[float] = []
    """The newest losses, oldest first."""
    unit: float | None = None
    signed: bool = False
    near_zero: float = NEAR_ZERO
    """Share of the first losses below which the scale is linear."""

    def take(self, loss: float) -> list[float]:
        """Add a finite loss; return the losses that can be placed on the scale now.

        The list is empty at first, then has all losses so far, in order, then each new one. It has
        all recent losses again if the first negative loss shows that the run needs another unit.
        """
        if self.unit is None and loss == 0:
            return []
        self.seen.append(loss)
        del self.seen[:-SEEN_RECORDS]
        settled = self.unit is not None and (self.signed or loss >= 0)
        if settled or len(self.seen) < SEEN_RECORDS:
            return [loss] if self.unit is not None else []
        self._settle()
        return self.seen

    def _settle(self) -> None:
        ordered = sorted(self.seen)
        quarter = len(ordered) // 4
        self.signed = ordered[0] < 0
        spread = (ordered[-1 - quarter] - ordered[quarter]) / 1.349
        largest = max(-ordered[0], ordered[-1])
        if self.signed:
            unit = max(SIGNED_SD * spread, SIGNED_LARGEST * largest)
        else:
            unit = self.near_zero * ordered[len(ordered) // 2]
        self.unit = max(unit, 1e-12)

    def to(self, loss: float) -> float:
        """Return a loss on the scale; there must be a unit."""
        assert self.unit is not None, "take() decides on the unit"
        return math.asinh(loss / self.unit)

    def back(self, x: float) -> float:
        """Return the loss of a value on the scale; the inverse of `to`."""
        assert self.unit is not None, "take() decides on the unit"
        return self.unit * math.sinh(x)
