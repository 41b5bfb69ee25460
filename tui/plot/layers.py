"""From curves to a picture: which points in which layer, within which limits. No toolkit here."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..view_model.axis import Axis, places, ruler_of, steps_at, window_of
from ..view_model.branches import Branch, Stretch, stretches
from ..view_model.series import Point, Series, Trace

OUTLIERS = 0.02
"""Share of the values, at least three, that do not count as the bulk."""
OUTLIER = 1.6
"""Values farther past the bulk than this, in units of its height, are cut off and marked."""


@dataclass(frozen=True)
class Layer:
    """Points of one look; runs are connected, or single when `dots`."""

    style: str
    """old, raw, ema, live, eval, clip, band, limit"""
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
    to: str = ""
    """Another curve: what lies between the two is filled."""
    of: Sequence[Branch] = ()
    """The branches of another run."""
    shift: float = 0.0
    """Added on an axis that is not the step, so that runs of different days begin together."""


@dataclass(frozen=True)
class PlotPicture:
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
    axis: Axis = "step",
    log_y: bool = False,
    floor: float | None = None,
    limits: Sequence[float] = (),
) -> PlotPicture:
    """Draw curves over all branches within a window of steps.

    `floor` is a value the y axis starts from, `limits` are lines across, drawn where the picture
    reaches them.
    """
    x = window_of(branches, axis, window)
    found: _Found = {}
    gaps: list[float] = []
    for curve in curves:
        for part in stretches(curve.of or branches, curve.name):
            if part.live or curve.old:
                trace = _trace(part, x, columns, axis, curve.shift)
                style = curve.style if part.live else "old"
                runs = _band(part, trace, curve.to) if curve.to else trace.runs
                found.setdefault((part.live, style, curve.dots), []).extend(runs)
                gaps.extend(trace.gaps if part.live else ())
    layers = [Layer(style, tuple(runs), dots) for (_, style, dots), runs in _old_first(found)]
    drawn = PlotPicture(tuple(layers), x, log_y=log_y, gaps=tuple(sorted(set(gaps))))
    return _with_limits(_fit(drawn, floor), limits)


def _trace(part: Stretch, x: tuple[float, float], columns: int, axis: Axis, shift: float) -> Trace:
    """A stretch as points on the axis, two per column at most."""
    ruler = ruler_of(part.branch, axis)
    if ruler is None:
        low, high = max(x[0], part.x0), min(x[1], part.x1)
    else:
        ends = places(np.clip([part.x0, part.x1], ruler.xs[0], ruler.xs[-1]), ruler) + shift
        low, high = max(x[0], float(ends[0])), min(x[1], float(ends[1]))
    if high < low or (axis != "step" and ruler is None):
        return Trace()
    share = (high - low) / (x[1] - x[0])
    edges = np.linspace(low, high, max(1, math.ceil(columns * share)) + 1)
    trace = part.series.trace_between(steps_at(edges - (shift if ruler else 0.0), ruler))
    return trace if ruler is None else _moved(trace, ruler, shift)


def _moved(trace: Trace, ruler: Series, shift: float) -> Trace:
    def move(xs: Iterable[float]) -> list[float]:
        return [float(x) + shift for x in places(np.array(list(xs)), ruler)]

    runs = tuple(
        tuple(zip(move(x for x, _ in run), [y for _, y in run], strict=True)) for run in trace.runs
    )
    return Trace(runs, tuple(move(trace.gaps)))


def _band(part: Stretch, trace: Trace, other: str) -> tuple[tuple[Point, ...], ...]:
    """Every point of a trace beside the same place of another curve, for filling between them."""
    twin = part.branch.curves.get(other)
    if twin is None:
        return ()
    pairs: list[Point] = []
    for run in trace.runs:
        for x, y in run:
            pairs += [(x, y), (x, twin.at(x) or y)]
    return (tuple(pairs),) if pairs else ()


def _with_limits(drawn: PlotPicture, limits: Sequence[float]) -> PlotPicture:
    low, high = drawn.y
    levels = [math.log10(v) if drawn.log_y else v for v in limits if v > 0 or not drawn.log_y]
    runs = tuple(((drawn.x[0], v), (drawn.x[1], v)) for v in levels if low <= v <= high)
    return replace(drawn, layers=(Layer("limit", runs), *drawn.layers)) if runs else drawn


def _old_first(found: _Found) -> list[tuple[_Look, list[tuple[Point, ...]]]]:
    return sorted(found.items(), key=lambda item: item[0][0])


def _fit(drawn: PlotPicture, floor: float | None) -> PlotPicture:
    if drawn.log_y:
        drawn, floor = _logarithmic(drawn), None
    decisive = [layer for layer in drawn.layers if layer.style != "old"] or drawn.layers
    values = [y for layer in decisive for run in layer.runs for _, y in run]
    low, high = limits(values, floor)
    over = sorted({x for layer in drawn.layers for run in layer.runs for x, y in run if y > high})
    layers = tuple(
        replace(layer, runs=tuple(_clamped(run, low, high) for run in layer.runs))
        for layer in drawn.layers
    )
    return replace(drawn, layers=layers, y=(low, high), over=tuple(over))


def _clamped(run: Sequence[Point], low: float, high: float) -> tuple[Point, ...]:
    return tuple((x, min(high, max(low, y))) for x, y in run)


def _logarithmic(drawn: PlotPicture) -> PlotPicture:
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


def column_of(x: float, window: tuple[float, float], columns: int) -> int:
    """The plot column a step falls into, clamped to the plot."""
    share = (x - window[0]) / (window[1] - window[0])
    return min(columns - 1, max(0, int(share * columns)))
