"""Turn the curves of a run into a picture: layers of points within the limits of both axes."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from ..view_model.axis import Axis, places, ruler_of, steps_at, window_of
from ..view_model.branches import Branch, Stretch, stretches
from ..view_model.series import Point, Series, Trace

OUTLIERS = 0.02
"""Share of the values, the largest ones and at least three, that do not belong to the bulk."""
OUTLIER = 1.6
"""Values above the bulk by more than this multiple of its range are cut off and marked."""


@dataclass(frozen=True)
class Layer:
    """Points that are drawn in one style."""

    style: str
    """Such as `old`, `raw`, `ema`, `live`, `eval`, `clip`, `band`, `limit` or `run1`."""
    runs: tuple[tuple[Point, ...], ...]
    """Stretches of points; the points of a stretch are connected."""
    dots: bool = False
    """Draw single points instead of connected ones."""


@dataclass(frozen=True)
class Curve:
    """A metric to draw and the style to draw it in."""

    name: str
    style: str
    dots: bool = False
    old: bool = True
    """Whether to draw the stretches that a rollback abandoned, dimmed."""
    to: str = ""
    """Name of another curve; the area between the two is filled."""
    of: Sequence[Branch] = ()
    """Branches of another run to draw instead of this run's."""
    shift: float = 0.0
    """Offset on the time axis, so that runs of different days start at the same place."""


@dataclass(frozen=True)
class PlotPicture:
    """The layers of a plot and the limits of its axes."""

    layers: tuple[Layer, ...] = ()
    x: tuple[float, float] = (0.0, 1.0)
    y: tuple[float, float] = (0.0, 1.0)
    log_y: bool = False
    gaps: tuple[float, ...] = ()
    """x of the non-finite values."""
    over: tuple[float, ...] = ()
    """x of the values above the upper limit of y."""

    @property
    def empty(self) -> bool:
        """Whether there are no points to draw."""
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
    """Return the picture of curves over all branches within a window of steps.

    Args:
        branches: the branches of this run.
        curves: the curves to draw.
        window: the first and the last step.
        columns: the width of the plot in cells.
        axis: the unit of the x axis.
        log_y: whether the y axis is logarithmic.
        floor: a value that a linear y axis includes, such as 0; None includes none.
        limits: values of horizontal lines, drawn if the y axis reaches them.
    """
    x = window_of(branches, axis, window)
    found: _Found = {}
    gaps: list[float] = []
    for curve in curves:
        for part in stretches(curve.of or branches, curve.name):
            if part.live or curve.old:
                trace = _trace(part, x, columns, axis, curve)
                style = curve.style if part.live else "old"
                found.setdefault((part.live, style, curve.dots), []).extend(trace.runs)
                gaps.extend(trace.gaps if part.live else ())
    layers = [Layer(style, tuple(runs), dots) for (_, style, dots), runs in _old_first(found)]
    drawn = PlotPicture(tuple(layers), x, log_y=log_y, gaps=tuple(sorted(set(gaps))))
    return _with_limits(_fit(drawn, floor), limits)


def _trace(part: Stretch, x: tuple[float, float], columns: int, axis: Axis, curve: Curve) -> Trace:
    """Return the points of a stretch between two x, about two per column (four for a band)."""
    ruler, shift = ruler_of(part.branch, axis), curve.shift
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
    trace = _band(trace, part.branch.curves.get(curve.to)) if curve.to else trace
    return trace if ruler is None else _moved(trace, ruler, shift)


def _moved(trace: Trace, ruler: Series, shift: float) -> Trace:
    def move(xs: Iterable[float]) -> list[float]:
        return [float(x) + shift for x in places(np.array(list(xs)), ruler)]

    runs = tuple(
        tuple(zip(move(x for x, _ in run), [y for _, y in run], strict=True)) for run in trace.runs
    )
    return Trace(runs, tuple(move(trace.gaps)))


def _band(trace: Trace, other: Series | None) -> Trace:
    """Return the points of a trace, each followed by the point of another curve at the same step.

    The plot is filled between the two.
    """
    if other is None:
        return Trace(gaps=trace.gaps)
    pairs: list[Point] = []
    for x, y in chain.from_iterable(trace.runs):
        value = other.at(x)
        pairs += [(x, y), (x, y if value is None else value)]
    return replace(trace, runs=(tuple(pairs),) if pairs else ())


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
    """Return the limits of the y axis around the bulk of the values and all values of `include`.

    Values far above the bulk are left outside, so that they do not flatten the rest of the curve.
    With a `floor`, the axis includes it and has no margin below its lower limit.
    """
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
    """Return which of `columns` columns x falls into, clamped to the plot.

    `window` is the first and the last x of the plot.
    """
    share = (x - window[0]) / (window[1] - window[0])
    return min(columns - 1, max(0, int(share * columns)))
