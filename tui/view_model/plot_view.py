"""The view of the curves that all plots share: window, axes, smoothing, loss part, cursor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from .axis import AXES, Axis
from .branches import SMOOTHINGS
from .history.ranking import RunPicks
from .run_view import Mark

MIN_SPAN = 10.0


@dataclass(frozen=True)
class PlotView:
    """The view of the curves; all plots share it and so show the same steps."""

    span: float | None = None
    """Width of the window in steps; None shows the whole run."""
    right: float | None = None
    """Right edge of the window; None follows the newest step."""
    log_y: bool = False
    smoothing: int = 0
    """Index into `SMOOTHINGS`; one past the last shows raw values only."""
    part: int = 0
    """0 shows the total loss, larger numbers one of its parts."""
    cursor: int | None = None
    """Step of the cursor; None without a cursor."""
    axis: Axis = "step"
    undone: bool = True
    """Whether to show the steps that rollbacks abandoned, with their marks."""
    only: str = ""
    """Filter of the metrics screen: words, any of which a metric's name must contain."""
    picks: RunPicks = field(default_factory=RunPicks)
    """Which runs of a comparison are drawn."""

    @property
    def following(self) -> bool:
        """Whether the window follows the newest step."""
        return self.right is None

    @property
    def beta(self) -> float | None:
        """The EMA factor of the shown loss curve; None shows raw values only."""
        return SMOOTHINGS[self.smoothing] if self.smoothing < len(SMOOTHINGS) else None

    def window(self, newest: float) -> tuple[float, float]:
        """Return the first and the last step shown, given the newest step.

        If the view follows the newest step, the last step shown is it or up to 1 % more.
        """
        right = _settled(max(newest, 1.0)) if self.right is None else self.right
        left = 0.0 if self.span is None else max(0.0, right - self.span)
        return left, max(right, left + 1.0)

    def zoomed(self, inwards: bool, newest: float) -> PlotView:
        """Return the view with half the span if `inwards`, else twice the span.

        It is centred on the cursor, but ends at the newest step at the latest; without a cursor,
        the right edge stays. The span is at least `MIN_SPAN`, and zooming out to the length of the
        run shows the whole run, which it then follows.
        """
        left, right = self.window(newest)
        span = max(MIN_SPAN, (right - left) / 2) if inwards else (right - left) * 2
        if span >= newest and not inwards:
            return replace(self, span=None, right=None)
        if self.cursor is None:
            return replace(self, span=span)
        edge = min(float(newest), self.cursor + span / 2)
        return replace(self, span=span, right=max(edge, span))

    def with_undone(self, undone: bool) -> PlotView:
        """Return the view with or without the steps that rollbacks abandoned."""
        return replace(self, undone=undone)

    def followed(self) -> PlotView:
        """Return the view that follows the newest step, without a cursor."""
        return replace(self, right=None, cursor=None)

    def smoothed(self) -> PlotView:
        """Return the view with the next smoothing; raw values only follow the last EMA factor."""
        return replace(self, smoothing=(self.smoothing + 1) % (len(SMOOTHINGS) + 1))

    def with_log(self, log_y: bool) -> PlotView:
        """Return the view with a logarithmic or a linear Y axis."""
        return replace(self, log_y=log_y)

    def next_axis(self) -> PlotView:
        """Return the view with the next X axis: steps, wall time, tokens, epochs."""
        return replace(self, axis=AXES[(AXES.index(self.axis) + 1) % len(AXES)])

    def next_part(self) -> PlotView:
        """Return the view with the next part of the loss; plots show the total after the last."""
        return replace(self, part=self.part + 1)

    def moved(self, columns: int, width: int, newest: int) -> PlotView:
        """Return the view with the cursor moved by columns of a plot that is `width` columns wide.

        Without a cursor it starts at the newest step. It stays between 0 and the newest step, and
        the window moves to keep it visible.
        """
        left, right = self.window(newest)
        stride = max(1, round((right - left) / max(1, width)))
        start = self.cursor if self.cursor is not None else newest
        return self.at(min(newest, max(0, start + columns * stride)), newest)

    def panned(self, share: float, newest: float) -> PlotView:
        """Return the view with the window moved by a share of its width, to the left if negative.

        A window that reaches the newest step follows it from then on, and none begins before step
        0. A view of the whole run is unchanged.
        """
        left, right = self.window(newest)
        if self.span is None:
            return self
        right += share * (right - left)
        if right >= newest:
            return replace(self, right=None)
        return replace(self, right=max(right, self.span))

    def at(self, step: int, newest: int) -> PlotView:
        """Return the view with the cursor on a step, and that step in the window."""
        left, right = self.window(newest)
        if left <= step <= right:
            return replace(self, cursor=step)
        span = right - left
        return replace(self, cursor=step, right=min(float(newest), max(span, step + span / 2)))

    def at_mark(self, marks: Sequence[Mark], forward: bool, newest: int) -> PlotView:
        """Return the view with the cursor on the next event if `forward`, else on the previous one.

        Without a cursor, the search starts behind the newest step. Without such an event the view
        is unchanged.
        """
        steps = sorted({mark.step for mark in marks})
        here = self.cursor if self.cursor is not None else newest + 1
        if forward:
            found = next((step for step in steps if step > here), None)
        else:
            found = next((step for step in reversed(steps) if step < here), None)
        return self if found is None else self.at(found, newest)


def _settled(newest: float) -> float:
    """Round the newest step up, by at most 1 % or to an integer, so that few need a new plot."""
    quantum = 2.0 ** max(0, math.floor(math.log2(newest / 100)))
    return math.ceil(newest / quantum) * quantum
