"""The scale losses are compared on: differences are log ratios, whatever the unit of the loss."""

from __future__ import annotations

import math

import msgspec

SEEN_RECORDS = 12
"""Enough to tell a loss that changes sign, and as many as a channel needs to warm up."""
NEAR_ZERO = 1e-3
"""A loss a thousandth of the run's first ones is as good as zero: the scale turns linear there."""
FIRST_LOSSES = 1.0
"""Where a loss goes from chance to zero its noise goes with the first losses, not with the level: a
preference told apart costs next to nothing, one that is not costs as much as ever."""
SIGNED_SD = 10.0
"""A loss that changes sign (as in RL) has no ratios; ten standard deviations are the unit."""


SIGNED_LARGEST = 3.0
"""… or three times the largest value, where most of them are exactly 0."""


class Scale(msgspec.Struct):
    """asinh(loss / unit): a logarithm far above the unit, linear around zero, odd.

    The unit comes from the run, so a loss multiplied by a constant is judged alike.
    """

    seen: list[float] = []
    """The newest losses, oldest first."""
    unit: float | None = None
    signed: bool = False
    near_zero: float = NEAR_ZERO
    """Share of the first losses below which the scale is linear."""

    def take(self, loss: float) -> list[float]:
        """Take a finite loss in; returns the losses that can be judged or learned from now on.

        None at first; then all seen so far, in order; then each one as it comes. All recent ones
        again when the first negative loss shows that the run needs another unit.
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
        """A loss on the scale; needs a unit."""
        assert self.unit is not None, "take() decides on the unit"
        return math.asinh(loss / self.unit)

    def back(self, x: float) -> float:
        """The inverse of `to`."""
        assert self.unit is not None, "take() decides on the unit"
        return self.unit * math.sinh(x)
