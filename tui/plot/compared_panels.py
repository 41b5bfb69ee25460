"""The panels of the compare screen: one curve for each run, the best and the chosen ones on top."""

from __future__ import annotations

from collections.abc import Sequence

from ..text import format as fmt
from ..view_model.app_state import AppState
from ..view_model.history.ranking import RankedRun
from ..view_model.run_view import RunView
from .layers import Curve
from .panels import Entry, Panel, value_at

GREY, CHOSEN = "old", "ema"
"""Looks of runs that are drawn without a colour of their own, and of the run under the cursor."""


def compared(metric: str) -> Panel:
    """Return the panel of a metric of all runs of a comparison."""

    def curves(state: AppState) -> Sequence[Curve]:
        return [_curve(state, metric, one) for one in _drawn(state)]

    def title(state: AppState) -> Sequence[Entry]:
        shown = [one for one in state.compared if one.coloured]
        entries = []
        for place, one in enumerate(shown):
            value = fmt.number(value_at(one.run, metric, state.plot.cursor))
            brief = None if place == 0 else ""
            entries.append(Entry(f"{one.sign} {value}", look_of(state, one), brief=brief))
        return entries

    name = "".join(c if c.isalnum() else "-" for c in metric)
    return Panel(f"compare-{name}", metric, curves, title, can_log=True)


def look_of(state: AppState, one: RankedRun) -> str:
    """Return the look of a run's curves: that of the chosen run, a colour, or grey."""
    if one.id == state.plot.picks.current and len(state.compared) > 1:
        return CHOSEN
    return one.colour if one.coloured else GREY


def _drawn(state: AppState) -> list[RankedRun]:
    """Return the runs to draw, those drawn over others last."""
    shown = [one for one in reversed(state.compared) if not one.hidden]
    current = state.plot.picks.current
    return sorted(shown, key=lambda one: (one.id == current, one.coloured))


def _curve(state: AppState, metric: str, one: RankedRun) -> Curve:
    branches = () if one.own else one.run.branches
    shift = 0.0 if one.own else _shift(state, one.run)
    look = look_of(state, one)
    mark = "" if look == GREY else one.sign
    return Curve(metric, look, old=False, of=branches, shift=shift, mark=mark)


def _shift(state: AppState, other: RunView) -> float:
    """Return the seconds that align another run's start with this run's on the time axis.

    It is 0 on other axes, or if one of the starts is unknown.
    """
    began = other.started_at
    if state.plot.axis != "time" or not began or not state.run.started_at:
        return 0.0
    return float(state.run.started_at - began)
