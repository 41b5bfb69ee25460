"""Turn the curves of a run into a picture: layers of points within the limits of both axes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise

import numpy as np

from ..view_model.axis import Axis, place_of, places, ruler_of, steps_at, window_of
from ..view_model.branches import Branch, Stretch, abandoned, stretches
from ..view_model.series import Point, Series, Trace
from .scale import YScale, scale_of


@dataclass(frozen=True)
class Layer:
    """Points that are drawn in one style."""

    style: str
    """Such as `old`, `raw`, `ema`, `live`, `eval`, `clip`, `band`, `limit` or `run1`."""
    runs: tuple[tuple[Point, ...], ...]
    """Stretches of points; the points of a stretch are connected."""
    dots: bool = False
    """Draw single points instead of connected ones."""
    filled: bool = False
    """Fill the area below the points."""

    @property
    def live(self) -> bool:
        """Whether the current weights descend from its steps."""
        return self.style != "old"


@dataclass(frozen=True, order=True)
class SignPlace:
    """A place on the x axis for a sign, and whether the current weights descend from its step."""

    x: float
    live: bool


@dataclass(frozen=True)
class UndoneSpan:
    """Abandoned steps: their places on the x axis within the plot, and the steps themselves."""

    left: float
    right: float
    first: int
    """The step from which training continued without them."""
    last: int


@dataclass(frozen=True)
class Curve:
    """A metric to draw and the style to draw it in."""

    name: str
    style: str
    dots: bool = False
    old: bool = True
    """Whether to draw the stretches that a rollback abandoned, in grey."""
    filled: bool = False
    """Fill the area below the curve; not that of abandoned stretches."""
    step: bool = False
    """Draw a staircase, for a setting that keeps its value from step to step."""
    to: str = ""
    """Name of another curve; the area between the two is filled."""
    of: Sequence[Branch] = ()
    """Branches of another run to draw instead of this run's."""
    shift: float = 0.0
    """Offset on the time axis, so that runs of different days start at the same place."""
    mark: str = ""
    """A sign at the newest point, which tells curves of the same colour apart; empty for none."""


@dataclass(frozen=True)
class YAxis:
    """What the y axis of a plot has to show."""

    log: bool = False
    floor: float | None = None
    """A value that a linear axis includes, such as 0; None includes none."""
    limits: Sequence[float] = ()
    """Values of horizontal lines, drawn if the axis reaches them."""
    band: bool = True
    """Whether there is room for a band of values above the main range."""


_PLAIN = YAxis()


_UNIT = YScale()


@dataclass(frozen=True)
class CurveMark:
    """A sign at the newest point of a curve."""

    point: Point
    sign: str
    style: str


@dataclass(frozen=True)
class PlotPicture:
    """The layers of a plot and the limits of its axes."""

    layers: tuple[Layer, ...] = ()
    x: tuple[float, float] = (0.0, 1.0)
    scale: YScale = _UNIT
    gaps: tuple[SignPlace, ...] = ()
    """Places of the non-finite values."""
    over: tuple[SignPlace, ...] = ()
    """Places of the values above the upper end of the y axis."""
    undone: tuple[UndoneSpan, ...] = ()
    """The spans of abandoned steps."""
    marks: tuple[CurveMark, ...] = ()
    """The signs of curves, those to draw over others last."""

    @property
    def empty(self) -> bool:
        """Whether there are no points to draw."""
        return not any(layer.runs for layer in self.layers)


_Look = tuple[bool, str, bool, bool]
_Found = dict[_Look, list[tuple[Point, ...]]]


def picture(
    branches: Sequence[Branch],
    curves: Iterable[Curve],
    window: tuple[float, float],
    columns: int,
    *,
    axis: Axis = "step",
    y: YAxis = _PLAIN,
    undone: bool = True,
) -> PlotPicture:
    """Return the picture of curves over all branches within a window of steps.

    Args:
        branches: the branches of this run.
        curves: the curves to draw.
        window: the first and the last step.
        columns: the width of the plot in cells.
        axis: the unit of the x axis.
        y: what the y axis has to show.
        undone: whether to draw the steps that rollbacks abandoned.
    """
    x = window_of(branches, axis, window)
    found: _Found = {}
    gaps: set[SignPlace] = set()
    marks: list[CurveMark] = []
    for curve in curves:
        newest: Point | None = None
        for part in stretches(curve.of or branches, curve.name):
            if part.live or (curve.old and undone):
                trace = _trace(part, x, columns, axis, curve)
                if not curve.dots and not curve.to:
                    trace = _joined(trace, _lead_place(curve.of or branches, axis, part), x[0])
                trace = _stairs(trace) if curve.step else trace
                style = curve.style if part.live else "old"
                look = (part.live, style, curve.dots, curve.filled and part.live)
                found.setdefault(look, []).extend(trace.runs)
                gaps.update(SignPlace(x, part.live) for x in trace.gaps)
                newest = trace.runs[-1][-1] if part.live and trace.runs else newest
        if curve.mark and newest is not None:
            marks.append(CurveMark(newest, curve.mark, curve.style))
    layers = [Layer(look[1], tuple(runs), *look[2:]) for look, runs in _old_first(found)]
    scale = _scale(layers, y)
    return PlotPicture(
        (*_limit_lines(scale, x, y.limits), *layers),
        x,
        scale,
        gaps=tuple(sorted(gaps)),
        over=_over(layers, scale),
        undone=tuple(undone_spans(branches, axis, x)) if undone else (),
        marks=tuple(marks),
    )


def _scale(layers: Sequence[Layer], axis: YAxis) -> YScale:
    live = [[y for run in layer.runs for _, y in run] for layer in layers if layer.live]
    old = [y for layer in layers if not layer.live for run in layer.runs for _, y in run]
    return scale_of(live, old, floor=axis.floor, log=axis.log, band=axis.band)


def _over(layers: Sequence[Layer], scale: YScale) -> tuple[SignPlace, ...]:
    """Return the places of the values above the y axis; none if it has a band or is logarithmic."""
    if scale.log or scale.top is not None:
        return ()
    found = {
        SignPlace(x, layer.live)
        for layer in layers
        for run in layer.runs
        for x, y in run
        if y > scale.high
    }
    return tuple(sorted(found))


def undone_spans(
    branches: Sequence[Branch], axis: Axis, window: tuple[float, float]
) -> Iterator[UndoneSpan]:
    """Yield the abandoned steps that lie in a window of places on the axis, oldest branch first.

    Those of a branch that has no values for the axis are left out.
    """
    for index, first, last in abandoned(branches):
        ruler = ruler_of(branches[index], axis)
        if axis != "step" and ruler is None:
            continue
        left, right = places(np.array([first, last], dtype=np.float64), ruler).tolist()
        if right > window[0] and left < window[1]:
            yield UndoneSpan(max(left, window[0]), min(right, window[1]), first, last)


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
    steps = steps_at(edges - (shift if ruler else 0.0), ruler)
    trace = part.series.trace_between(steps)
    if curve.to:
        trace = _band(trace, part.branch.curves.get(curve.to))
    elif not curve.dots:
        trace = _with_ends(trace, part, float(steps[0]), float(steps[-1]))
    return trace if ruler is None else _moved(trace, ruler, shift)


def _lead_place(branches: Sequence[Branch], axis: Axis, part: Stretch) -> Point | None:
    """Return the point that a stretch is joined to, with its place on the axis; None if it is not.

    On the time axis no stretch is, because a rollback comes later than the steps that it abandoned.
    Abandoned stretches are joined on the axis of steps only.
    """
    if part.lead is None or axis == "time" or (axis != "step" and not part.live):
        return None
    return place_of(branches, axis, part.lead[0]), part.lead[1]


def _joined(trace: Trace, lead: Point | None, low: float) -> Trace:
    """Return the trace with `lead` before its first point, if there is one that is in the plot.

    `low` is the lower end of the x axis.
    """
    if lead is None or not trace.runs or not low <= lead[0] < trace.runs[0][0][0]:
        return trace
    return replace(trace, runs=((lead, *trace.runs[0]), *trace.runs[1:]))


def _stairs(trace: Trace) -> Trace:
    """Return the trace with each value kept until the x of the next one."""

    def kept(run: Sequence[Point]) -> Iterator[Point]:
        for (x, y), (after, following) in pairwise(run):
            yield x, y
            if following != y:
                yield after, y
        yield run[-1]

    return replace(trace, runs=tuple(tuple(kept(run)) for run in trace.runs))


def _with_ends(trace: Trace, part: Stretch, first: float, last: float) -> Trace:
    """Return the trace with the points at which the stretch forks, which thinning may drop.

    `first` and `last` are the steps between which the trace was taken.
    """
    if not trace.runs:
        return trace
    start, end = part.series.point_at(part.x0), part.series.point_at(part.x1)
    runs = list(trace.runs)
    if start and math.isfinite(start[1]) and first <= start[0] == part.x0 < runs[0][0][0]:
        runs[0] = (start, *runs[0])
    if end and math.isfinite(end[1]) and last >= end[0] == part.x1 > runs[-1][-1][0]:
        runs[-1] = (*runs[-1], end)
    return replace(trace, runs=tuple(runs))


def _moved(trace: Trace, ruler: Series, shift: float) -> Trace:
    def move(xs: Iterable[float]) -> list[float]:
        return [float(x) + shift for x in places(np.array(list(xs)), ruler)]

    runs = tuple(
        tuple(zip(move(x for x, _ in run), [y for _, y in run], strict=True)) for run in trace.runs
    )
    return Trace(runs, tuple(move(trace.gaps)))


def _band(trace: Trace, other: Series | None) -> Trace:
    """Return the points of a trace, each followed by the point of another curve at the same step.

    The plot is filled between the two. Without the other curve there are no points.
    """
    if other is None:
        return Trace(gaps=trace.gaps)
    pairs: list[Point] = []
    for x, y in chain.from_iterable(trace.runs):
        value = other.at(x)
        pairs += [(x, y), (x, y if value is None else value)]
    return replace(trace, runs=(tuple(pairs),) if pairs else ())


def _limit_lines(
    scale: YScale, x: tuple[float, float], limits: Sequence[float]
) -> tuple[Layer, ...]:
    """Return a layer with the horizontal lines that the y axis reaches; none if it reaches none."""
    inside = [
        v for v, share in zip(limits, scale.shares(list(limits)), strict=True) if 0 <= share <= 1
    ]
    runs = tuple(((x[0], v), (x[1], v)) for v in inside)
    return (Layer("limit", runs),) if runs else ()


def _old_first(found: _Found) -> list[tuple[_Look, list[tuple[Point, ...]]]]:
    return sorted(found.items(), key=lambda item: item[0][0])


def column_of(x: float, window: tuple[float, float], columns: int) -> int:
    """Return which of `columns` columns x falls into, clamped to the plot.

    `window` is the first and the last x of the plot.
    """
    share = (x - window[0]) / (window[1] - window[0])
    return min(columns - 1, max(0, int(share * columns)))
