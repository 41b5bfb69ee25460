"""How the person looks at the curves: window, scale, smoothing, cursor; shared by all plots."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from .axis import AXES, Axis
from .branches import SMOOTHINGS
from .run_view import Mark

MIN_SPAN = 10.0


@dataclass(frozen=True)
class PlotView:
    """Shared by all plots, so that they stay in step with each other."""

    span: float | None = None
    """Steps shown; None is the whole run."""
    right: float | None = None
    """Right edge; None follows the newest step."""
    log_y: bool = False
    smoothing: int = 0
    """Index into the smoothings; one past the last is raw only."""
    part: int = 0
    """0 is the total loss, then its parts."""
    cursor: int | None = None
    """Step under inspection."""
    axis: Axis = "step"
    only: str = ""
    """Metrics shown on the grid are those with this text in their name."""

    @property
    def following(self) -> bool:
        """The newest step stays in view."""
        return self.right is None

    @property
    def beta(self) -> float | None:
        """The EMA factor shown; None is raw only."""
        return SMOOTHINGS[self.smoothing] if self.smoothing < len(SMOOTHINGS) else None

    def window(self, newest: float) -> tuple[float, float]:
        """First and last step shown, given the newest one."""
        right = _settled(max(newest, 1.0)) if self.right is None else self.right
        left = 0.0 if self.span is None else max(0.0, right - self.span)
        return left, max(right, left + 1.0)

    def zoomed(self, inwards: bool, newest: float) -> PlotView:
        """Half or double the span, around the cursor when there is one."""
        left, right = self.window(newest)
        span = max(MIN_SPAN, (right - left) / 2) if inwards else (right - left) * 2
        if span >= newest and not inwards:
            return replace(self, span=None, right=None)
        if self.cursor is None:
            return replace(self, span=span)
        edge = min(float(newest), self.cursor + span / 2)
        return replace(self, span=span, right=max(edge, span))

    def followed(self) -> PlotView:
        """Back to the newest step, or hold what is shown now."""
        return replace(self, right=None, cursor=None)

    def smoothed(self) -> PlotView:
        """The next smoothing."""
        return replace(self, smoothing=(self.smoothing + 1) % (len(SMOOTHINGS) + 1))

    def with_log(self, log_y: bool) -> PlotView:
        """A logarithmic or a linear Y axis."""
        return replace(self, log_y=log_y)

    def next_axis(self) -> PlotView:
        """Steps, wall time, tokens, epochs."""
        return replace(self, axis=AXES[(AXES.index(self.axis) + 1) % len(AXES)])

    def next_part(self) -> PlotView:
        """The total loss, then each part."""
        return replace(self, part=self.part + 1)

    def moved(self, columns: int, width: int, newest: int) -> PlotView:
        """Move the cursor by plot columns; the window goes along at its edges."""
        left, right = self.window(newest)
        stride = max(1, round((right - left) / max(1, width)))
        start = self.cursor if self.cursor is not None else newest
        return self.at(min(newest, max(0, start + columns * stride)), newest)

    def panned(self, share: float, newest: float) -> PlotView:
        """Move the window by a share of its width; at the newest step it follows again."""
        left, right = self.window(newest)
        if self.span is None:
            return self
        right += share * (right - left)
        if right >= newest:
            return replace(self, right=None)
        return replace(self, right=max(right, self.span))

    def at(self, step: int, newest: int) -> PlotView:
        """Put the cursor on a step and bring it into view."""
        left, right = self.window(newest)
        if left <= step <= right:
            return replace(self, cursor=step)
        span = right - left
        return replace(self, cursor=step, right=min(float(newest), max(span, step + span / 2)))

    def at_mark(self, marks: Sequence[Mark], forward: bool, newest: int) -> PlotView:
        """Put the cursor on the next or previous event."""
        steps = sorted({mark.step for mark in marks})
        here = self.cursor if self.cursor is not None else newest + 1
        if forward:
            found = next((step for step in steps if step > here), None)
        else:
            found = next((step for step in reversed(steps) if step < here), None)
        return self if found is None else self.at(found, newest)


def _settled(newest: float) -> float:
    """A right edge that moves by about a hundredth at a time, so that pictures stay the same."""
    quantum = 2.0 ** max(0, math.floor(math.log2(newest / 100)))
    return math.ceil(newest / quantum) * quantum
