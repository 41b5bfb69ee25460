"""From curves to a picture: which points in which layer, within which limits. No toolkit here."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from .curves import Branch, stretches
from .series import Point

OUTLIERS = 0.02
"""Share of the values, at least three, that do not count as the bulk."""
OUTLIER = 1.6
"""Values farther past the bulk than this, in units of its height, are cut off and marked."""


@dataclass(frozen=True)
class Layer:
    """Points of one look; runs are connected, or single when `dots`."""

    style: str
    """old, raw, ema, live, eval, clip, …"""
    runs: tuple[tuple[Point, ...], ...]
    dots: bool = False


@dataclass(frozen=True)
class Curve:
    """A metric to draw and its look."""

    name: str
    style: str
    dots: bool = False
    old: bool = True
    """Draw abandoned stretches, dimmed."""


@dataclass(frozen=True)
class Picture:
    """What a plot shows."""

    layers: tuple[Layer, ...] = ()
    x: tuple[float, float] = (0.0, 1.0)
    y: tuple[float, float] = (0.0, 1.0)
    log_y: bool = False
    gaps: tuple[float, ...] = ()
    """x of values that were not finite."""
    over: tuple[float, ...] = ()
    """x of values above the picture."""

    @property
    def empty(self) -> bool:
        """There is nothing to draw."""
        return not any(layer.runs for layer in self.layers)


_Look = tuple[bool, str, bool]
_Found = dict[_Look, list[tuple[Point, ...]]]


def picture(
    branches: Sequence[Branch],
    curves: Iterable[Curve],
    window: tuple[float, float],
    columns: int,
    *,
    log_y: bool = False,
    floor: float | None = None,
    include: Sequence[float] = (),
) -> Picture:
    """Draw curves over all branches within a window of steps.

    `floor` is a value the y axis starts from; `include` are values it has to reach.
    """
    found: _Found = {}
    gaps: list[float] = []
    for curve in curves:
        for part in stretches(branches, curve.name):
            if not part.live and not curve.old:
                continue
            x0, x1 = max(window[0], part.x0), min(window[1], part.x1)
            if x1 < x0:
                continue
            share = (x1 - x0) / (window[1] - window[0])
            trace = part.series.trace(x0, x1, max(1, math.ceil(columns * share)))
            style = curve.style if part.live else "old"
            found.setdefault((part.live, style, curve.dots), []).extend(trace.runs)
            gaps.extend(trace.gaps if part.live else ())
    layers = [Layer(style, tuple(runs), dots) for (_, style, dots), runs in _old_first(found)]
    drawn = Picture(tuple(layers), window, log_y=log_y, gaps=tuple(sorted(set(gaps))))
    return _fit(drawn, floor, include)


def _old_first(found: _Found) -> list[tuple[_Look, list[tuple[Point, ...]]]]:
    return sorted(found.items(), key=lambda item: item[0][0])


def _fit(drawn: Picture, floor: float | None, include: Sequence[float]) -> Picture:
    if drawn.log_y:
        drawn = _logarithmic(drawn)
        include = [math.log10(v) for v in include if v > 0]
        floor = None
    decisive = [layer for layer in drawn.layers if layer.style != "old"] or drawn.layers
    values = [y for layer in decisive for run in layer.runs for _, y in run]
    low, high = limits(values, floor, include)
    over = sorted({x for layer in drawn.layers for run in layer.runs for x, y in run if y > high})
    layers = tuple(
        replace(layer, runs=tuple(_clamped(run, low, high) for run in layer.runs))
        for layer in drawn.layers
    )
    return replace(drawn, layers=layers, y=(low, high), over=tuple(over))


def _clamped(run: Sequence[Point], low: float, high: float) -> tuple[Point, ...]:
    return tuple((x, min(high, max(low, y))) for x, y in run)


def _logarithmic(drawn: Picture) -> Picture:
    def logged(run: Sequence[Point]) -> tuple[Point, ...]:
        return tuple((x, math.log10(y)) for x, y in run if y > 0)

    layers = tuple(
        replace(layer, runs=tuple(r for run in layer.runs if (r := logged(run))))
        for layer in drawn.layers
    )
    return replace(drawn, layers=layers)


def limits(
    values: Sequence[float], floor: float | None = None, include: Sequence[float] = ()
) -> tuple[float, float]:
    """Limits around the bulk of the values: a lone outlier does not flatten the rest."""
    if not values:
        low, high = (floor or 0.0), max([*include, (floor or 0.0) + 1.0])
        return low, high
    ordered = sorted(values)
    low, top = ordered[0], ordered[-1]
    bulk = ordered[max(0, len(ordered) - 1 - max(3, int(OUTLIERS * len(ordered))))]
    far = bulk + OUTLIER * (bulk - low)
    high = ordered[bisect_right(ordered, far) - 1] if bulk > low else top
    if floor is not None:
        low = min(low, floor)
    low, high = min([low, *include]), max([high, *include])
    if high - low < 1e-9 * max(1.0, abs(high)):
        slack = abs(high) * 0.1 or 1.0
        return (low if floor is not None else low - slack), high + slack
    slack = 0.04 * (high - low)
    return (low if floor is not None else low - slack), high + slack


def ticks(low: float, high: float, most: int) -> list[float]:
    """Round values inside the limits, at most that many (fewer when they do not fit)."""
    if most < 1 or not high > low:
        return []
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(k * step, 12) for k in range(first, math.floor(high / step + 1e-9) + 1)]


def log_ticks(low: float, high: float, most: int) -> list[float]:
    """Logarithms of round values (1, 2, 5 or every digit) inside logarithmic limits."""
    found: list[float] = []
    for digits in ((1,), (1, 2, 5), (1, 2, 3, 4, 5, 6, 7, 8, 9)):
        powers = range(math.floor(low), math.ceil(high) + 1)
        marks = [power + math.log10(digit) for power in powers for digit in digits]
        inside = [mark for mark in marks if low <= mark <= high]
        if len(inside) > most:
            break
        found = inside
    return found


def column_of(x: float, window: tuple[float, float], columns: int) -> int:
    """The plot column a step falls into, clamped to the plot."""
    share = (x - window[0]) / (window[1] - window[0])
    return min(columns - 1, max(0, int(share * columns)))
