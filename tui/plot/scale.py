"""The y axis of a plot: its range, and where a value lies between its lower and its upper end.

Values far above the rest share a narrow band at the upper end, on a logarithmic scale, so that an
explosion stays readable beside the calm curve beneath it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from ..view_model.series import Floats

BAND = 0.22
"""Share of the height that the band of values above the main range takes, if there is one."""
SPARSE = 20
"""A curve with fewer values than this has no outliers; its range covers all of them."""
OUTLIERS = 0.02
"""Share of the values, the largest ones and at least three, that do not belong to the bulk."""
OUTLIER = 1.6
"""Values above the bulk by more than this multiple of its range lie outside the main range."""
EXPLOSION = 6.0
"""A value that lies above all earlier minima by more than this multiple of what is usual for the
curve has exploded, however many such values there are."""
USUAL = 0.65
"""Share of the values whose height above the earlier minimum is usual."""
NOTABLE = 2.0
"""A value explodes only if it is above the earlier minimum by this multiple of the minimum, too."""
_MARGIN = 0.04
_SMALLEST = 1e-12
"""Least unit of the band, as a share of what lies above the main range."""
_BARELY = 1e-3
"""A largest value above the main range by no more than this share of it extends the range."""


@dataclass(frozen=True)
class YScale:
    """The y axis of a plot."""

    low: float = 0.0
    high: float = 1.0
    """Upper end of the main range, which is linear, or logarithmic if `log`."""
    top: float | None = None
    """The largest value of the band above the main range; None without such a band."""
    log: bool = False
    """Whether the axis is logarithmic; `low` and `high` are then log10 of its ends."""

    @property
    def main_share(self) -> float:
        """Share of the height that the main range takes."""
        return 1.0 if self.top is None else 1.0 - BAND

    def shares(self, values: ArrayLike) -> Floats:
        """Return the places of values as shares of the height, 0 at the lower end.

        A value outside the axis has a share below 0 or above 1. On a logarithmic axis, a value that
        has no logarithm lies below it.
        """
        ys = np.asarray(values, dtype=np.float64)
        if self.log:
            with np.errstate(divide="ignore", invalid="ignore"):
                ys = np.where(ys > 0, np.log10(ys), -np.inf)
        span = self.high - self.low
        with np.errstate(over="ignore"):  # a span may be so small that a share is infinite
            if self.top is None:
                above: Floats = (ys - self.low) / span
                return above
            main: Floats = (np.minimum(ys, self.high) - self.low) / span * self.main_share
        if ys.max(initial=self.low) <= self.high:
            return main
        unit = max(span, (self.top - self.high) * _SMALLEST)
        most = np.log1p((self.top - self.high) / unit)
        found: Floats = main + BAND * np.log1p(np.maximum(ys - self.high, 0.0) / unit) / most
        return found


def main_range(
    curves: Sequence[Sequence[float]], floor: float | None = None, include: Sequence[float] = ()
) -> tuple[float, float]:
    """Return the limits around the bulk of all values of some curves and all values of `include`.

    Values far above the bulk are left outside, so that they do not flatten the rest. Each curve is
    in the order of its steps. With a `floor`, the range includes it and has no margin below its
    lower limit. Without values, it begins at `floor` or 0 and is at least 1 wide.
    """
    values = sorted(value for curve in curves for value in curve)
    if not values:
        return floor or 0.0, max([*include, (floor or 0.0) + 1.0])
    low = values[0]
    unexploded = max(_unexploded(curve) for curve in curves if len(curve))
    high = max(low, min(_bulk(values), unexploded))
    if floor is not None:
        low = min(low, floor)
    low, high = min([low, *include]), max([high, *include])
    return _with_margin(low, high, floor)


def _with_margin(low: float, high: float, floor: float | None) -> tuple[float, float]:
    if high - low < 1e-9 * max(1.0, abs(high)):
        slack = abs(high) * 0.1 or 1.0
    else:
        slack = _MARGIN * (high - low)
    return (low if floor is not None else low - slack), high + slack


def _bulk(ordered: Sequence[float]) -> float:
    """Return the largest of the sorted values that is not an outlier."""
    low, top = ordered[0], ordered[-1]
    if len(ordered) < SPARSE:
        return top
    bulk = ordered[max(0, len(ordered) - 1 - max(3, int(OUTLIERS * len(ordered))))]
    far = bulk + OUTLIER * (bulk - low)
    return ordered[bisect_right(ordered, far) - 1] if bulk > low else top


def _unexploded(curve: Sequence[float]) -> float:
    """Return the largest value of a curve that has not exploded.

    A value is compared with the smallest one until then, so that a long fall, such as that of the
    loss after the start, is not an explosion.
    """
    ys = np.asarray(curve, dtype=np.float64)
    if len(ys) < SPARSE:
        return float(ys.max())
    lowest = np.minimum.accumulate(ys)
    excess = ys - lowest
    rank = int(USUAL * (len(ys) - 1))
    usual = np.partition(excess, rank)[rank]
    limit = np.maximum(EXPLOSION * usual, NOTABLE * np.abs(lowest))
    return float(ys[excess <= limit].max())


def scale_of(
    curves: Sequence[Sequence[float]],
    others: Sequence[float],
    *,
    floor: float | None = None,
    log: bool = False,
    band: bool = True,
) -> YScale:
    """Return the y axis for some curves.

    Args:
        curves: the values of the curves, one sequence each, in the order of the steps. The dense
            ones decide on the main range; without dense ones, all do.
        others: the values of abandoned steps; those near the main range extend it.
        floor: a value that a linear axis includes.
        log: whether the axis is logarithmic; it then covers all values.
        band: whether there is room for a band of values above the main range.
    """
    if log:
        return _logarithmic([*(y for curve in curves for y in curve), *others])
    known = [curve for curve in curves if len(curve)]
    dense = [curve for curve in known if len(curve) >= SPARSE]
    decisive = dense or known or [others]
    low, high = main_range(decisive, floor)
    rest = [*others, *(y for curve in known if len(curve) < SPARSE for y in curve)]
    close = [y for y in rest if low - (high - low) <= y <= high + (high - low)]
    if close and (min(close) < low or max(close) > high):
        low, high = main_range(decisive, floor, close)
    top = max([high, *rest, *(max(curve) for curve in decisive if len(curve))])
    if top <= high + _BARELY * (high - low):
        high = max(high, top)
        return YScale(low, high)
    return YScale(low, high, top if band else None)


def _logarithmic(values: Sequence[float]) -> YScale:
    logs = np.log10([y for y in values if y > 0])
    low, high = (float(logs.min()), float(logs.max())) if len(logs) else (0.0, 1.0)
    return YScale(*_with_margin(low, high, None), log=True)
