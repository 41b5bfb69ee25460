"""The scale on which the detector compares losses: asinh(loss / unit), logarithmic if large."""

from __future__ import annotations

import math

import msgspec

SEEN_RECORDS = 12
"""Newest losses that decide on the unit."""
FIRST_RECORDS = 6
"""Losses before the first unit is set."""
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


FROM_ZERO, GROWTH = 2, 30.0
"""First losses of exactly 0, and growth after them, of a loss whose scale is linear.

The objectives of on-policy learning begin at 0 and grow from there; ratios to their first values
mean nothing.
"""
YOUNG_RECORDS = 40
"""First records of such a loss, in which it finds its size. One that changes sign has its size from
the beginning, so that a value far above it is an outlier."""


class Scale(msgspec.Struct):
    """The scale asinh(loss / unit): a logarithm far above the unit, linear around zero, odd.

    The unit comes from the run, so a constant factor on the loss changes nothing. A loss of exactly
    0 has no place on it while the others are positive: short targets and rounding make such losses,
    and all they say is that the loss was small.
    """

    seen: list[float] = []
    """The newest losses other than 0, oldest first."""
    unit: float | None = None
    signed: bool = False
    """Whether losses change sign or began at 0, so that their ratios mean nothing."""
    near_zero: float = NEAR_ZERO
    """Share of the first losses below which the scale is linear."""
    records: int = 0
    zeros: int = 0
    """Losses of exactly 0 before any other."""

    def take(self, loss: float) -> tuple[float, ...]:
        """Add a finite loss; return the losses that can be placed on the scale now.

        The first calls return none, until the unit is known. Then all losses so far are returned,
        in order, and after that each new one. If the run turns out to need another unit, the newest
        losses are returned again. A loss of exactly 0 is returned only if the scale is `linear` and
        has a unit.
        """
        self.records += 1
        if loss == 0:
            self.zeros += not self.seen
            return (loss,) if self.linear and self.unit is not None else ()
        seen = self.seen
        seen.append(loss)
        if len(seen) > SEEN_RECORDS:
            del seen[0]
        if self.unit is None:
            if len(seen) < FIRST_RECORDS:
                return ()
        elif (loss > 0 and not self.signed) or not self._changes(loss):
            return (loss,)
        self._settle()
        return tuple(seen)

    @property
    def linear(self) -> bool:
        """Whether ratios of usual losses mean nothing, so that the scale is linear for them."""
        return self.signed or self.near_zero == FIRST_LOSSES

    def _changes(self, loss: float) -> bool:
        """Return whether a loss shows that the run needs another unit."""
        if not self.signed:
            return loss < 0
        finds_size = self.records <= YOUNG_RECORDS and self.zeros >= FROM_ZERO
        return finds_size and abs(loss) > (self.unit or 0.0)

    def _settle(self) -> None:
        ordered = sorted(self.seen)
        quarter = len(ordered) // 4
        grown = self.zeros >= FROM_ZERO and ordered[-1] > GROWTH * ordered[0]
        self.signed = self.signed or ordered[0] < 0 or grown
        spread = (ordered[-1 - quarter] - ordered[quarter]) / 1.349
        largest = max(-ordered[0], ordered[-1])
        if self.signed:
            unit = max(SIGNED_SD * spread, SIGNED_LARGEST * largest)
        else:
            unit = self.near_zero * ordered[len(ordered) // 2]
        self.unit = max(unit, 1e-12)

    def to(self, loss: float) -> float:
        """Return a loss on the scale; there must be a unit."""
        assert self.unit is not None, "no unit yet: take() chooses it from the first losses"
        return math.asinh(loss / self.unit)

    def back(self, x: float) -> float:
        """Return the loss of a value on the scale, the inverse of `to`; there must be a unit.

        Raises:
            OverflowError: the loss is too large for a float.
        """
        assert self.unit is not None, "no unit yet: take() chooses it from the first losses"
        return self.unit * math.sinh(x)
