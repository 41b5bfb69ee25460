"""Effects of the mouse on plots: the window after a drag or the wheel, and the event clicked."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ...plot.frame import MARK_SHAPE
from ...view_model.incidents.alarm import Anomaly
from ...view_model.plot_view import MIN_SPAN, PlotView
from ...view_model.run_view import Mark

RANK = {kind: rank for rank, kind in enumerate(MARK_SHAPE)}
"""Priority of events of which several are in one column."""


def spanned(view: PlotView, first: int, last: int, newest: float) -> PlotView:
    """Return the view of the steps from `first` to `last`; at the newest step it follows.

    The span is at least `MIN_SPAN`.
    """
    right = None if last >= newest else float(max(last, MIN_SPAN))
    end = newest if right is None else right
    return replace(view, span=max(MIN_SPAN, end - first), right=right)


def zoomed_around(view: PlotView, step: int, newest: float, *, inwards: bool) -> PlotView:
    """Return the view with half or twice the span, with `step` at the same place on the screen.

    The window stays within the run, so near its ends the place of the step may change. Zooming out
    to the length of the run shows the whole run.
    """
    left, right = view.window(newest)
    zoomed = view.zoomed(inwards, newest)
    if zoomed.span is None:
        return zoomed
    share = min(1.0, max(0.0, (step - left) / (right - left)))
    end = max(step + (1.0 - share) * zoomed.span, zoomed.span)
    return replace(zoomed, right=None if end >= newest else end)


def event_at(marks: Iterable[Mark], steps: tuple[int, int]) -> Mark | None:
    """Return the most important event with a sign between two steps; None without one."""
    found = [m for m in marks if m.kind in RANK and steps[0] <= m.step <= steps[1]]
    return max(found, key=lambda mark: RANK[mark.kind], default=None)


def anomaly_of(mark: Mark, anomalies: Iterable[Anomaly]) -> str | None:
    """Return the id of the anomaly with a report that an event stands for; None without one."""
    for anomaly in anomalies:
        same = anomaly.step == mark.step and anomaly.event.headline == mark.text
        if same and anomaly.event.report:
            return anomaly.event.id
    return None
