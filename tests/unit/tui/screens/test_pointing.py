"""Windows and events that the mouse chooses on plots."""

from __future__ import annotations

import pytest

from fttui.tui.screens.plots.pointing import anomaly_of, event_at, spanned, zoomed_around
from fttui.tui.view_model.plot_view import MIN_SPAN, PlotView
from fttui.tui.view_model.reducer import apply_many
from fttui.tui.view_model.run_view import Mark, RunView
from tests.support.session_double import live_spike


def test_a_selected_span_is_the_window() -> None:
    assert spanned(PlotView(), 100, 300, 1000.0).window(1000.0) == (100.0, 300.0)


def test_a_span_up_to_the_newest_step_follows() -> None:
    view = spanned(PlotView(), 900, 1000, 1000.0)
    assert view.following
    assert view.span == 100.0


def test_a_narrow_span_is_widened() -> None:
    left, right = spanned(PlotView(), 500, 502, 1000.0).window(1000.0)
    assert right - left == MIN_SPAN
    assert left <= 500 <= right


@pytest.mark.parametrize("step", [200, 500, 800])
def test_the_wheel_keeps_the_step_under_the_mouse_in_its_place(step: int) -> None:
    view = PlotView(span=800.0, right=900.0)
    zoomed = zoomed_around(view, step, 1000.0, inwards=True)
    left, right = zoomed.window(1000.0)
    assert right - left == 400.0
    assert (step - left) / 400.0 == pytest.approx((step - 100.0) / 800.0)


def test_zooming_out_far_enough_shows_everything() -> None:
    view = PlotView(span=800.0, right=900.0)
    for _ in range(3):
        view = zoomed_around(view, 500, 1000.0, inwards=False)
    assert view.window(1000.0)[0] == 0.0


def test_of_several_events_in_a_column_the_gravest_is_opened() -> None:
    marks = [Mark(5, 0.0, 0, kind, kind) for kind in ("command", "alarm", "checkpoint")]
    marks += [Mark(5, 0.0, 0, "eval", "eval"), Mark(9, 0.0, 0, "alarm", "later")]
    found = event_at(marks, (4, 6))
    assert found is not None
    assert found.kind == "alarm"
    assert event_at(marks, (0, 3)) is None


def test_the_sign_of_an_alarm_leads_to_its_report() -> None:
    run = apply_many(RunView(), live_spike().records)
    ids = [anomaly_of(m, run.anomalies) for m in run.marks if m.kind in ("alarm", "watch")]
    assert "a1241" in ids
    assert all(anomaly_of(m, run.anomalies) is None for m in run.marks if m.kind == "checkpoint")
