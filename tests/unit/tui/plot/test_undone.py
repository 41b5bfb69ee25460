"""Steps that a rollback abandoned: their marks, values and curves belong to their own timeline."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fttui.tui.plot import raster
from fttui.tui.plot.frame import GUTTER, LOOKS, framed, signs_of
from fttui.tui.plot.layers import Curve, PlotPicture, YAxis, picture
from fttui.tui.plot.panels import GRAD_NORM, LEARNING_RATE, LOSS, Panel
from fttui.tui.view_model.app_state import AppState
from fttui.tui.view_model.axis import Axis
from fttui.tui.view_model.branches import abandoned
from fttui.tui.view_model.reducer import apply_many
from fttui.tui.view_model.run_view import RunView
from tests.support.session_double import Script, spike, undone

COLUMNS, LINES = 60, 16


def _state(script: Script, **view: object) -> AppState:
    state = AppState(run=apply_many(RunView(), script.records))
    return replace(state, plot=replace(state.plot, **view))  # type: ignore[arg-type]  # of a mapping


def _picture(state: AppState, panel: Panel = LOSS, *, band: bool = True) -> PlotPicture:
    return picture(
        state.run.branches, panel.curves(state), state.plot.window(float(state.run.step)), COLUMNS,
        axis=state.plot.axis, y=YAxis(floor=panel.floor, band=band), undone=state.plot.undone,
    )  # fmt: skip


def _drawn(state: AppState, panel: Panel = LOSS) -> raster.Sheet:
    drawn = _picture(state, panel)
    return framed(raster.draw(drawn, COLUMNS, LINES), drawn, state, panel)


def _rows(sheet: raster.Sheet) -> list[str]:
    return ["".join(map(chr, row)) for row in sheet.chars]


def test_only_events_of_the_live_history_have_their_colour() -> None:
    signs = signs_of(_state(undone()))
    alarm = next(sign for sign in signs if sign.kind == "alarm")
    assert not alarm.place.live
    found = [(s.place.x, s.place.live) for s in signs if s.kind == "checkpoint"]
    assert sorted(found) == [(60.0, True), (80.0, False)]
    assert [s.place.live for s in signs if s.kind == "rollback"] == [True]
    axis = _drawn(_state(undone())).layers[LINES]
    assert LOOKS.index("alarm") not in axis
    assert LOOKS.index("gone") in axis


def test_an_alarm_of_the_live_timeline_is_red_where_an_abandoned_one_shares_its_column() -> None:
    script = undone()
    script.rollback("step-000060-t1", 60).train(4).add(spike(script))
    layers = _drawn(_state(script)).layers[LINES]
    assert LOOKS.index("alarm") in layers


def test_arrows_off_the_scale_say_whether_their_step_is_live() -> None:
    over = _picture(_state(undone()), band=False).over
    assert over
    assert not any(place.live for place in over)
    script = Script(spikes={80: 90.0}).start().run().train(100)
    assert [place.live for place in _picture(_state(script), band=False).over] == [True]


def test_the_title_has_no_value_of_an_abandoned_step() -> None:
    script = undone()
    before = script.records[: next(
        i for i, r in enumerate(script.records) if r.step == 60 and r.timeline == 2
    ) + 1]  # fmt: skip
    state = AppState(run=apply_many(RunView(), before))
    texts = [entry.text for panel in (LOSS, GRAD_NORM) for entry in panel.entries(state)]
    assert "eval 2.900" in texts, "the evaluation at step 94 gave 28.67 and was undone"
    assert not any(len(text.split(".")[0]) > 2 for text in texts if text[:1].isdigit())


def test_the_share_of_clipped_updates_counts_the_live_history_only() -> None:
    calm = Script(total=200).start().run().train(60)
    state, before = _state(undone()), _state(calm)
    live = before.run.clipped_share * 60
    assert state.run.clipped_share * 140 <= live + 80
    assert before.run.clipped_share < 1
    share = next(e.text for e in GRAD_NORM.entries(state) if "clipped" in e.text)
    assert share.startswith(f"{100 * state.run.clipped_share:.1f} %")


def test_the_best_evaluation_is_one_of_the_live_history() -> None:
    assert _state(undone()).run.best_eval_loss == 2.6


def test_the_undone_span_is_shaded_and_named() -> None:
    sheet = _drawn(_state(undone()))
    shaded = np.all(sheet.layers[:LINES] >= len(LOOKS), axis=0)
    columns = np.flatnonzero(shaded).tolist()
    first, last = columns[0], columns[-1]
    assert first - GUTTER == int(60 / 140 * COLUMNS)
    assert last - GUTTER == int(94 / 140 * COLUMNS)
    assert columns == list(range(first, last + 1))
    assert any("60–94 undone" in row for row in _rows(sheet))


def test_what_was_undone_can_be_hidden_with_its_marks() -> None:
    state = _state(undone(), undone=False)
    drawn = _picture(state)
    assert (drawn.undone, {layer.live for layer in drawn.layers}) == ((), {True})
    assert drawn.scale.top is None, "without the explosion the axis needs no band"
    assert all(sign.place.live for sign in signs_of(state))
    assert [sign.kind for sign in signs_of(state)].count("rollback") == 1


@pytest.mark.parametrize("axis", ["step", "time", "tokens", "epoch"])
def test_the_span_lies_where_its_steps_lie_on_every_axis(axis: Axis) -> None:
    state = _state(undone(), axis=axis)
    (span,) = _picture(state).undone
    assert (span.first, span.last) == (60, 94)
    branch = state.run.branches[0]
    if axis == "time":
        assert span.right == branch.curves["time"].at(94)
    assert span.left < span.right


def test_a_rollback_within_an_abandoned_timeline_abandons_both() -> None:
    script = Script().start().run().train(50).rollback("a", 30).train(10).rollback("b", 10).train(5)
    found = list(abandoned(_state(script).run.branches))
    assert [(first, last) for _, first, last in found] == [(10, 50), (30, 40)]


@pytest.mark.parametrize(("axis", "joined"), [("step", True), ("tokens", True), ("time", False)])
def test_a_new_timeline_is_joined_to_the_step_it_continues_from(axis: Axis, joined: bool) -> None:
    script = Script().start().run().train(50).rollback("a", 30).train(10)
    state = _state(script, axis=axis)
    drawn = _picture(state, LEARNING_RATE)
    (live,) = (layer for layer in drawn.layers if layer.live)
    places = [x for x, _ in live.runs[1]]
    before = live.runs[0][-1][0]
    assert (places[0] == before) is joined


@pytest.mark.parametrize("columns", [7, 20, 60, 300])
def test_thinning_leaves_no_gap_where_a_timeline_forks(columns: int) -> None:
    script = Script().start().run().train(500).rollback("a", 301).train(200)
    run = _state(script).run
    drawn = picture(run.branches, [Curve("grad_norm", "live")], (0, 501), columns)
    old, live = drawn.layers
    assert [run[0][0] for run in old.runs] == [301]
    assert live.runs[0][-1] == live.runs[1][0]
    assert live.runs[1][0][0] == 301


def test_settings_are_drawn_as_stairs() -> None:
    script = Script().start().run().train(30)
    script.command("clip 2", "1", "2").train(30)
    drawn = _picture(_state(script), GRAD_NORM)
    clip = next(layer for layer in drawn.layers if layer.style == "clip")
    (run,) = clip.runs
    assert next(x for x, y in run if y != run[0][1]) == 31
    before = [x for x, y in run if y == run[0][1]]
    assert before[-1] == 31, "the old value reaches the step at which the new one begins"
