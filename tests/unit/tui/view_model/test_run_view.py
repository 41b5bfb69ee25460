from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from fttui.engine.protocol.commands import ScaleLr
from fttui.engine.protocol.events import (
    CheckpointSaved,
    CommandAccepted,
    CommandApplied,
    Record,
    RunEnded,
    StepFinished,
)
from fttui.engine.protocol.requests import Beat
from fttui.engine.protocol.states import RunState
from fttui.tui.plot.layers import Curve, SignPlace, YAxis, column_of, picture
from fttui.tui.plot.panels import (
    GRAD_NORM,
    LEARNING_RATE,
    LOSS,
    MEMORY,
    THROUGHPUT,
    metrics_of,
    panel_for,
    value_at,
)
from fttui.tui.plot.scale import main_range
from fttui.tui.plot.ticks import axis_ticks, log_ticks, ticks
from fttui.tui.screens.tables import details
from fttui.tui.text import format as fmt
from fttui.tui.text.glyphs import STATE_SHAPE, to_ascii
from fttui.tui.view_model.app_state import AppState, fold, submitted, take_slice
from fttui.tui.view_model.axis import Axis, window_of
from fttui.tui.view_model.connection_port import (
    BeatArrived,
    CommandAnswered,
    Delivery,
    HistoryProgressed,
    Link,
    LinkChanged,
    PreviewArrived,
    RecordsArrived,
)
from fttui.tui.view_model.interventions import UNDO, Intervention, Interventions, Phase
from fttui.tui.view_model.plot_view import PlotView
from tests.support.session_double import EPOCH, GIB, Script, eventful

NOW = EPOCH + 100


def _state(script: Script, link: Link = Link.LIVE) -> AppState:
    state = AppState(run_id="r", viewer="me", issuer="ann@laptop")
    return fold(state, [RecordsArrived(script.records), LinkChanged(link)], script.now)


def _beat(script: Script, **fields: object) -> BeatArrived:
    known = {"time": script.now, "last_seq": 1, "engine_alive": True, **fields}
    return BeatArrived(Beat(**known))  # type: ignore[arg-type] # built from a mapping


# link


def test_a_run_whose_engine_is_gone_is_lost_unless_it_said_why() -> None:
    script = Script().start().run().train(3)
    state = fold(_state(script), [_beat(script, engine_alive=False)], script.now)
    assert state.state is RunState.LOST


def test_an_end_that_the_run_was_resumed_from_is_not_shown_while_reading() -> None:
    script = Script().start().run().train(3)
    script.add(RunEnded(state=RunState.FAILED, exit_code=11))
    read = len(script.records)
    more = _beat(script, last_seq=read + 20, state=RunState.RUNNING)
    assert fold(_state(script), [more], script.now).state is RunState.RUNNING
    all_there_is = _beat(script, last_seq=read, state=RunState.FAILED)
    assert fold(_state(script), [all_there_is], script.now).state is RunState.FAILED


@pytest.mark.parametrize(
    ("free", "told"),
    [(1 << 20, "disk full"), (40 << 20, "disk nearly full"), (1 << 40, None), (None, None)],
)
def test_a_full_disk_is_told_by_the_heartbeat_alone(free: int | None, told: str | None) -> None:
    script = eventful()
    state = fold(_state(script), [_beat(script, disk_free_bytes=free)], script.now)
    assert (state.trouble and state.trouble.short) == told
    if state.trouble is not None:
        assert fmt.size(free) in state.trouble.words
        assert "a checkpoint needs" in state.trouble.words
    gone = fold(_state(script), [_beat(script, disk_free_bytes=free, engine_alive=False)], 0.0)
    assert gone.trouble is None


def test_what_the_hub_knows_is_shown_before_anything_was_read() -> None:
    beat = _beat(Script(), last_seq=900, state=RunState.PAUSED)
    assert fold(AppState(), [LinkChanged(Link.LIVE), beat], 0.0).state is RunState.PAUSED


def test_a_dead_journal_without_an_end_is_lost() -> None:
    assert _state(Script().start().run().train(3), Link.ENDED).state is RunState.LOST


def test_no_step_for_long_is_told_only_while_running_and_live() -> None:
    script = Script().start().run().train(30)
    state = _state(script)
    assert state.stalled_s(script.now + 14) is None
    assert state.stalled_s(script.now + 15) == pytest.approx(15, abs=0.1)
    lost = fold(state, [LinkChanged(Link.LOST)], script.now)
    assert lost.stalled_s(script.now + 60) is None


def test_a_remote_clock_that_is_ahead_does_not_look_like_a_stall() -> None:
    script = Script().start().run().train(30)
    here = script.now - 3600
    state = fold(_state(script), [_beat(script)], here)
    assert state.stalled_s(here + 3) is None
    assert state.stalled_s(here + 20) == pytest.approx(20, abs=0.1)


def test_catching_up_is_told_from_history_progress() -> None:
    state = fold(AppState(), [HistoryProgressed(10, 100)], NOW)
    assert state.link.catching_up
    assert not fold(state, [HistoryProgressed(100, 100)], NOW).link.catching_up


# commands


def test_a_command_lives_from_sent_to_applied() -> None:
    script = Script().start().run().train(3)
    state = submitted(_state(script), "c1", ScaleLr(factor=0.5), "", NOW)
    item = state.run.interventions.items[-1]
    assert (item.text, item.outcome()) == ("lr scale 0.5", "sent")
    state = fold(state, [CommandAnswered("c1", True)], NOW)
    assert state.run.interventions.items[-1].outcome() == "accepted"
    applied = CommandApplied(id="c1", command="lr scale 0.5", old="1.00", new="0.50")
    record = Record(seq=99, time=NOW, step=641, timeline=1, event=applied)
    state = fold(state, [RecordsArrived([record])], NOW)
    assert state.run.interventions.items[-1].outcome() == "applied from 642 (1.00 → 0.50)"
    assert len(state.run.interventions) == 1


def test_an_outcome_shortens_its_values_before_it_drops_them() -> None:
    item = Intervention("a", "rollback", "ann", Phase.APPLIED, step=641)
    item = replace(item, old="step 1,000,814", new="step 1,000,800")
    assert item.outcome(47) == "done at 641 (step 1,000,814 → step 1,000,800)"
    assert item.outcome(36) == "done at 641 (step…,814 → step…,800)"
    assert item.outcome(20) == "done at 641"


def test_a_rejection_says_why() -> None:
    state = submitted(AppState(), "c1", ScaleLr(factor=0.5), "", NOW)
    state = fold(state, [CommandAnswered("c1", False, "ann has control")], NOW)
    assert state.run.interventions.items[-1].outcome() == "rejected: ann has control"


def test_the_hubs_answer_may_come_after_the_effect() -> None:
    state = submitted(AppState(), "c1", ScaleLr(factor=0.5), "", NOW)
    event = CommandApplied(id="c1", command="lr scale 0.5", old="1", new="0.5")
    record = Record(seq=1, time=NOW, step=7, timeline=1, event=event)
    late: list[Delivery] = [RecordsArrived([record]), CommandAnswered("c1", True)]
    state = fold(state, late, NOW)
    assert state.run.interventions.items[-1].phase is Phase.APPLIED


def test_a_late_acceptance_event_does_not_take_an_outcome_back() -> None:
    entries = Interventions().upsert(Intervention("a", "pause", "ann", Phase.APPLIED, step=3))
    entries = entries.upsert(Intervention("a", "pause", "ann", Phase.ACCEPTED, step=2))
    assert entries.items[0].phase is Phase.APPLIED
    assert entries.items[0].step == 3


def test_others_commands_appear_too() -> None:
    event = CommandAccepted(id="x", command="pause", issuer="bob@far")
    record = Record(seq=1, time=NOW, step=7, timeline=1, event=event)
    state = fold(AppState(), [RecordsArrived([record])], NOW)
    assert state.run.interventions.items[0].issuer == "bob@far"


def test_undo_takes_the_newest_change_that_was_not_undone() -> None:
    def applied(name: str, reason: str = "") -> Intervention:
        return Intervention(
            name, "lr scale 1", "ann", Phase.APPLIED, reason=reason, undo=ScaleLr(factor=1.0)
        )

    entries = Interventions((applied("a"), applied("b")))
    found = entries.last_undoable()
    assert found is not None
    assert found.id == "b"
    found = entries.upsert(applied("u", f"{UNDO}b")).last_undoable()
    assert found is not None
    assert found.id == "a"
    refused = Intervention("u", "lr scale 1", "ann", Phase.REJECTED, reason=f"{UNDO}b")
    found = entries.upsert(refused).last_undoable()
    assert found is not None
    assert found.id == "b", "an undo that was rejected did not undo it"
    both = entries.upsert(applied("u", f"{UNDO}b")).upsert(applied("v", f"{UNDO}a"))
    assert both.last_undoable() is None


def test_a_flood_is_folded_in_slices() -> None:
    records = Script().start().run().train(50).records
    waiting: list[Delivery] = [RecordsArrived(records, unknown=2), LinkChanged(Link.LIVE)]
    sizes = []
    state = AppState()
    while waiting:
        batch = take_slice(waiting, 20)
        sizes.append(sum(len(d.records) for d in batch if isinstance(d, RecordsArrived)))
        state = fold(state, batch, NOW)
    assert max(sizes) <= 20
    assert sum(sizes) == len(records)
    assert state.run.step == 50
    assert state.run.unknown == 2


# curves as pictures


def test_an_outlier_does_not_flatten_the_rest_and_is_marked() -> None:
    script = Script(spikes={150: 100.0}).start().run().train(300)
    run = _state(script).run
    drawn = picture(run.branches, [Curve("loss", "raw")], (0, 300), 60)
    assert drawn.scale.high < 10 < 100 < (drawn.scale.top or 0)
    assert drawn.over == (), "the band has room for it"
    low = picture(run.branches, [Curve("loss", "raw")], (0, 300), 60, y=YAxis(band=False))
    assert (low.scale.high, low.over) == (drawn.scale.high, (SignPlace(150.0, live=True),))


def test_abandoned_steps_are_drawn_first_and_dim() -> None:
    run = _state(eventful()).run
    drawn = picture(run.branches, [Curve("loss", "raw")], (0, 1240), 60)
    assert [layer.style for layer in drawn.layers] == ["old", "raw"]


@pytest.mark.parametrize("columns", [1, 7, 60, 300])
def test_at_most_two_points_per_column_and_stretch(columns: int) -> None:
    script = Script().start().run().train(2000)
    drawn = picture(_state(script).run.branches, [Curve("loss", "raw")], (0, 2000), columns)
    assert sum(len(r) for layer in drawn.layers for r in layer.runs) <= 2 * columns


def test_log_scale_leaves_out_what_has_no_logarithm() -> None:
    script = Script().start().run().train(20)
    drawn = picture(
        _state(script).run.branches, [Curve("lr", "live")], (0, 20), 20, y=YAxis(log=True)
    )
    assert drawn.scale.high < 0


def test_limits_of_nothing_and_of_one_value() -> None:
    assert main_range([[]], 0.0) == (0.0, 1.0)
    low, high = main_range([[5.0]])
    assert low < 5 < high
    assert main_range([[5.0]], 0.0)[0] == 0.0


def test_ticks_are_round_and_few() -> None:
    assert ticks(0, 1240, 4) == [0, 500, 1000]
    assert ticks(1.1, 4.3, 4) == [2, 3, 4]
    assert ticks(1, 1, 4) == []
    assert axis_ticks("step", 0, 470, 2) == [0, 200, 400], "one place alone is no scale"
    assert axis_ticks("step", 0, 1240, 2) == [0, 1000]
    assert axis_ticks("time", 0, 470, 1) == [0, 300]
    assert axis_ticks("step", 0, 0, 2) == []
    assert [round(10**t, 6) for t in log_ticks(-1, 2, 4)] == [0.1, 1, 10, 100]
    assert [round(10**t, 6) for t in log_ticks(0.1, 0.7, 6)] == [2, 3, 4, 5]
    assert column_of(1240, (0, 1240), 60) == 59


def test_every_panel_has_a_title_with_and_without_steps() -> None:
    full, empty = _state(eventful()), AppState()
    for panel in (LOSS, GRAD_NORM, LEARNING_RATE, MEMORY, THROUGHPUT):
        assert panel.entries(full)
        panel.entries(empty)
        at_cursor = replace(full, plot=PlotView(cursor=805))
        assert panel.entries(at_cursor)[0].text == "step 805"
    for name in metrics_of(full.run):
        assert panel_for(name).title(full)
    assert metrics_of(full.run)[0] == "loss"


def test_the_cursor_reads_the_live_timeline() -> None:
    run = _state(eventful()).run
    assert value_at(run, "loss", 812) == run.branches[1].curves["loss"].at(812)
    assert value_at(run, "loss", 100) == run.branches[0].curves["loss"].at(100)


def _rolled_back_twice() -> Script:
    """Steps 1 to 60; from step 20, steps 21 to 50; and from step 40 of the first, 41 to 45."""
    script = Script().start().run().train(20).checkpoint().train(20).checkpoint()
    first, second = (e for e in (r.event for r in script.records) if isinstance(e, CheckpointSaved))
    script.train(20).evaluate(9.0).rollback(first.name, 20).train(30)
    return script.rollback(second.name, 40).train(5)


def test_a_value_of_the_live_history_is_never_one_that_was_abandoned() -> None:
    run = _state(_rolled_back_twice()).run
    first, between, newest = (branch.curves["loss"] for branch in run.branches)
    assert value_at(run, "loss", 43) == newest.at(43)
    assert value_at(run, "loss", 30) == first.at(30) != between.at(30)
    assert value_at(run, "eval.loss", None) is None, "it was measured at step 60, after the fork"


def test_details_of_a_timeline_show_no_value_of_one_that_it_does_not_descend_from() -> None:
    run = _state(_rolled_back_twice()).run
    first, between, newest = (branch.curves["loss"] for branch in run.branches)
    assert details.value_at(run, "loss", 3, 30) == first.at(30)
    assert details.value_at(run, "loss", 2, 30) == between.at(30)
    assert details.value_at(run, "loss", 2, 15) == first.at(15)
    assert details.value_at(run, "loss", 1, 55) == first.at(55)
    assert details.value_at(run, "loss", 3, 44) == newest.at(44)


# plot view


def test_zoom_halves_and_doubles_and_ends_at_the_whole_run() -> None:
    view = PlotView().zoomed(True, 1000)
    assert view.window(1000) == (500, 1000)
    assert view.following
    assert view.zoomed(False, 1000).window(1000) == (0, 1000)


def test_zoom_keeps_the_cursor_in_view() -> None:
    view = PlotView(cursor=300).zoomed(True, 1000).zoomed(True, 1000)
    left, right = view.window(1000)
    assert left <= 300 <= right
    assert not view.following
    assert view.followed().window(1000)[1] == 1000


def test_the_cursor_stays_inside_the_run() -> None:
    view = PlotView().moved(-5, 100, 1000)
    assert view.cursor == 950
    assert view.moved(99, 100, 1000).cursor == 1000
    assert view.moved(-999, 100, 1000).cursor == 0


def test_events_are_walked_in_both_directions() -> None:
    run = _state(eventful()).run
    view = PlotView().at_mark(run.marks, False, run.step)
    assert view.cursor == 1200
    assert view.at_mark(run.marks, False, run.step).cursor == 1000
    forth = view.at_mark(run.marks, False, run.step).at_mark(run.marks, True, run.step)
    assert forth.cursor == 1200
    assert forth.at_mark(run.marks, True, run.step) == forth, "there is no later event"


def test_smoothing_cycles_through_raw() -> None:
    betas = []
    view = PlotView()
    for _ in range(5):
        betas.append(view.beta)
        view = view.smoothed()
    assert betas == [0.98, 0.9, 0.995, None, 0.98]


# shapes


def test_every_state_has_a_shape_and_ascii_keeps_the_width() -> None:
    assert set(STATE_SHAPE) == set(RunState)
    assert len(set(STATE_SHAPE.values())) >= len(RunState) - 3
    text = "● ×0.5 → ╭─╮ ⣿ é ‖ ▲"
    assert len(to_ascii(text)) == len(text)
    assert to_ascii(text).isascii()
    assert to_ascii("日本 é|e\u0301|") == "???? ?|e|", "two cells stay two, and none stay none"


# previews


def _journal(steps: int = 6000) -> Script:
    return Script(spikes={4321: 9.0}).start().run().train(steps)


def _loss(record: Record) -> float:
    assert isinstance(record.event, StepFinished)
    return record.event.loss_or_nan


def _thinned(script: Script) -> list[Record]:
    """As a bridge does: the extremes of every part, the newest step, and whatever is no step."""
    kept = [r for r in script.records if not isinstance(r.event, StepFinished)]
    steps = [r for r in script.records if isinstance(r.event, StepFinished)]
    kept += steps[-1:]
    for at in range(0, len(steps) - 1, 15):
        part = sorted(steps[at : at + 15][: len(steps) - 1 - at], key=_loss)
        kept += [part[0], part[-1]] if len(part) > 1 else part
    return sorted(kept, key=lambda record: record.seq)


def test_a_preview_is_drawn_and_gives_way_without_a_jump() -> None:
    script = _journal()
    head = len(script.records)
    state = AppState(run_id="r", viewer="me")
    state = fold(state, [PreviewArrived(_thinned(script), head, exact=True)], NOW)
    curves, window = [Curve("loss", "raw")], (0.0, 6000.0)
    early = picture(state.run.branches, curves, window, 100)
    assert not early.empty
    assert state.run.step == 6000
    half = fold(state, [RecordsArrived(script.records[:3000])], NOW)
    assert half.run is state.run
    assert half.link.read_seq < half.head_seq
    whole = fold(half, [RecordsArrived(script.records[3000:])], NOW)
    assert whole.reading is None
    assert whole.run.steps_seen == 6000
    late = picture(whole.run.branches, curves, window, 100)
    assert (early.x, early.scale, early.over) == (late.x, late.scale, late.over)
    for column in range(100):
        ys = [
            [
                y
                for run in drawn.layers[0].runs
                for x, y in run
                if column_of(x, drawn.x, 100) == column
            ]
            for drawn in (early, late)
        ]
        assert (min(ys[0]), max(ys[0])) == pytest.approx((min(ys[1]), max(ys[1])), rel=0.1)


def test_a_command_sent_while_a_preview_is_shown_is_not_lost_with_it() -> None:
    script = _journal(600)
    state = fold(AppState(issuer="ann"), [PreviewArrived(_thinned(script)[:50], 400)], NOW)
    state = submitted(state, "c1", ScaleLr(factor=0.5), "", NOW)
    again = PreviewArrived(_thinned(script), len(script.records), exact=True)
    state = fold(state, [again], NOW)
    (entry,) = state.run.interventions
    assert (entry.id, entry.phase) == ("c1", Phase.SENT)
    state = fold(state, [RecordsArrived(script.records), CommandAnswered("c1", True)], NOW)
    assert [i.phase for i in state.run.interventions] == [Phase.ACCEPTED]


def test_memory_of_every_rank_is_a_band_and_no_plot_of_its_own() -> None:
    script = Script().start().run().train(40)
    records = [
        replace_event(r, rank_mem_bytes=[4 * GIB, 5 * GIB, (4 + r.step % 3) * GIB])
        for r in script.records
    ]
    state = fold(AppState(), [RecordsArrived(records)], NOW)
    drawn = {layer.style: layer for layer in picture(
        state.run.branches, MEMORY.curves(state), (0, 40), 40).layers}  # fmt: skip
    ys = [y for run in drawn["band"].runs for _, y in run]
    assert (min(ys), max(ys)) == (4 * GIB, 6 * GIB)
    assert not any(name.startswith("rank_") for name in metrics_of(state.run))


@pytest.mark.parametrize("axis", ["step", "tokens", "time"])
def test_a_band_pairs_both_curves_at_the_same_step_on_every_axis(axis: Axis) -> None:
    records = [
        replace_event(r, rank_mem_bytes=[r.step * GIB, (r.step - 1) * GIB])
        for r in Script().start().run().train(40).records
    ]
    state = fold(AppState(), [RecordsArrived(records)], NOW)
    window = window_of(state.run.branches, axis, (0, 40))
    drawn = picture(state.run.branches, MEMORY.curves(state), (0, 40), 40, axis=axis)
    assert drawn.x == window
    bands = [layer for layer in drawn.layers if layer.style == "band"]
    points = [point for layer in bands for run in layer.runs for point in run]
    assert len(points) > 20
    for (x, high), (same, low) in zip(points[::2], points[1::2], strict=True):
        assert (same, low) == (x, high - GIB)
    assert min(y for _, y in points) == 0.0


def test_what_other_tasks_measure_becomes_a_curve_by_itself() -> None:
    script = Script().start().run().train(3)
    records = [
        replace_event(r, extra={"rewards/margin": 0.1 * r.step}, parts={"dpo": 0.7})
        for r in script.records
    ]
    state = fold(AppState(), [RecordsArrived(records)], NOW)
    assert {"rewards/margin", "loss.dpo"} <= set(metrics_of(state.run))
    (entry,) = panel_for("rewards/margin").entries(state)
    assert entry.text.startswith("0.3")


def test_the_loss_scale_of_half_precision_stands_over_the_gradients() -> None:
    script = Script().start().run().train(3)
    records = [replace_event(r, extra={"loss_scale": 65536.0}) for r in script.records]
    state = fold(AppState(), [RecordsArrived(records)], NOW)
    assert GRAD_NORM.entries(state)[-1].text == "loss scale 65,536"


def replace_event(record: Record, **fields: object) -> Record:
    """A step's record with other values; any other record as it is."""
    if not isinstance(record.event, StepFinished):
        return record
    event = msgspec.structs.replace(record.event, **fields)
    return msgspec.structs.replace(record, event=event)
