from __future__ import annotations

import math
from dataclasses import FrozenInstanceError

import msgspec
import pytest

from fttui.engine.protocol.benchmarks.result import BenchmarkFinished, BenchmarkScore
from fttui.engine.protocol.commands import AnyCommand, ScaleLr, SetClip, SetPolicy
from fttui.engine.protocol.event_parts import CulpritSearch
from fttui.engine.protocol.events import (
    AnomalyRaised,
    AnomalyResolved,
    CheckpointRemoved,
    CommandAccepted,
    CommandApplied,
    CommandFailed,
    CulpritsFound,
    LogEmitted,
    NoteAdded,
    ProgressMade,
    Record,
    RunEnded,
    RunStarted,
    SampleGenerated,
    StateChanged,
    StepFinished,
)
from fttui.engine.protocol.races.variant_step import VariantStep
from fttui.engine.protocol.settings import RunSettings
from fttui.engine.protocol.states import RunState
from fttui.tui.plot.frame import MARK_SHAPE
from fttui.tui.view_model.branches import abandoned, live_ends, smoothed, stretches
from fttui.tui.view_model.interventions import Phase
from fttui.tui.view_model.reducer import LOG_LIMIT, apply, apply_many
from fttui.tui.view_model.run_view import RunView
from tests.support.benchmarks import result
from tests.support.session_double import Script, eventful, failed, live_spike, loading, spike


def _fold(script: Script) -> RunView:
    return apply_many(RunView(), script.records)


def test_one_by_one_and_all_at_once_give_the_same_view() -> None:
    script = eventful()
    one = RunView()
    for record in script.records:
        one = apply(one, record)
    many = _fold(script)
    assert (one.step, one.seq, one.timeline, one.state) == (1240, many.seq, 2, RunState.RUNNING)
    assert one.interventions == many.interventions
    assert one.marks == many.marks
    assert one.pace == many.pace
    for left, right in zip(one.branches, many.branches, strict=True):
        assert left.curves.keys() == right.curves.keys()
        for name, series in left.curves.items():
            assert series.last == pytest.approx(right.curves[name].last, rel=1e-12)
        assert all(len(left.curves[n]) == len(right.curves[n]) for n in left.curves)


def test_records_already_seen_change_nothing() -> None:
    script = Script().start().run().train(20)
    view = _fold(script)
    assert apply_many(view, script.records) is view


def test_a_view_is_not_changed_by_applying_to_it() -> None:
    script = Script().start().run().train(5)
    view = _fold(script)
    script.train(5)
    later = apply_many(view, script.records)
    assert (view.step, later.step) == (5, 10)
    assert len(view.branch.curves["loss"]) == 5
    assert len(later.branch.curves["loss"]) == 10
    with pytest.raises(FrozenInstanceError):
        view.step = 7  # type: ignore[misc] # what is tested


def test_a_rollback_keeps_the_old_points_as_a_dead_stretch() -> None:
    view = _fold(eventful())
    parts = list(stretches(view.branches, "loss"))
    dead = [p for p in parts if not p.live]
    live = [p for p in parts if p.live]
    assert [p.x0 for p in dead] == [800.0]
    assert [p.series.last[0] for p in dead if p.series.last] == [814.0]
    assert live_ends(view.branches) == {1: math.inf, 0: 800.0}
    assert sorted(p.x1 for p in live) == [800.0, math.inf]
    assert parts.index(dead[0]) < parts.index(live[0])


def test_a_rollback_to_a_checkpoint_of_an_older_timeline_continues_that_one() -> None:
    script = eventful()
    script.rollback("step-000500-t1", 500).run().train(3)
    view = _fold(script)
    assert [b.parent for b in view.branches] == [None, 0, 0]
    assert live_ends(view.branches) == {2: math.inf, 0: 500}
    assert view.step == 503


def test_the_average_goes_on_from_where_the_rollback_led() -> None:
    script = eventful()
    view = _fold(script)
    before = view.branches[0].curves[smoothed(0.98)].at(800)
    after = view.branches[1].curves[smoothed(0.98)].at(801)
    assert before is not None
    assert after == pytest.approx(before, rel=0.05)


def test_a_resume_from_an_earlier_step_parts_the_history() -> None:
    script = Script().start().run().train(50)
    script.step = 40
    script.add(
        RunStarted(
            name="n", incarnation=2, pid=1, host="h", world_size=1, task="sft", model="m",
            total_steps=100, micro_batch_size=1, accumulation=1, resumed_from="step-000040-t1",
            start_step=40,
        )
    ).run().train(5)  # fmt: skip
    first = Script().start()
    began = _fold(first).started_at
    assert began == first.records[0].time > 0
    view = _fold(script)
    assert len(view.branches) == 2
    assert view.branch.start == 40
    assert view.step == 45
    assert view.started_at == began, "the run is as old as its first start"


def test_nan_is_kept_as_a_point_and_does_not_enter_the_average() -> None:
    script = Script().start().run().train(3)
    script.step += 1
    script.add(StepFinished(loss=math.nan, grad_norm=math.inf, skipped=True, step_s=1.0))
    view = _fold(script)
    loss = view.branch.curves["loss"].last
    assert loss is not None
    assert math.isnan(loss[1])
    assert math.isfinite(view.branch.averages[0].value)


def test_checkpoints_come_and_go() -> None:
    script = eventful()
    script.add(CheckpointRemoved(name="step-000400-t1"))
    view = _fold(script)
    assert [c.step for c in view.checkpoints] == [500, 800, 1200]
    assert view.good_checkpoints[0].step == 1200
    assert view.checkpoints[0].pinned


def test_the_open_anomaly_is_the_current_one_until_its_verdict() -> None:
    script = live_spike()
    view = _fold(script)
    assert view.current_incident is not None
    assert view.current_incident.first_step == 1241
    script.add(AnomalyResolved(id="a1241", verdict="recovered"))
    assert _fold(script).current_incident is None


def test_a_command_in_force_is_known_before_the_next_step() -> None:
    script = Script().start().run().train(5)
    script.command("lr scale 0.25", "1", "0.25").command("clip 0.3", "1", "0.3")
    view = _fold(script)
    assert (view.lr_scale, view.clip) == (0.25, 0.3)
    undo = [item.undo for item in view.interventions]
    assert [repr(u) for u in undo] == ["ScaleLr(factor=1.0)", "SetClip(value=1.0, percentile=None)"]


def test_the_values_of_a_recovery_are_known_before_the_next_step() -> None:
    script = Script().start().run().train(5).command("clip p90")
    script.rollback("step-000003-t1", 3)
    event = CommandApplied(id="guard-5", command="recover", issuer="guard")
    settings = RunSettings(lr_scale=0.5, clip=0.2)
    script.add(msgspec.structs.replace(event, settings=settings, previous=script.settings))
    view = _fold(script)
    assert (view.lr_scale, view.clip) == (0.5, 0.2)


def test_a_percentile_that_stays_leaves_the_clip_of_the_newest_step() -> None:
    """The settings hold where the percentile began; a step holds what it has become."""
    script = Script().start().run().train(5).command("clip p90")
    script.add(msgspec.structs.replace(_step(script), clip=0.77))
    view = _fold(script.command("lr scale 0.5"))
    assert (view.lr_scale, view.clip) == (0.5, 0.77)


def test_undo_brings_a_percentile_back() -> None:
    script = Script().start().run().train(5).command("clip p90").command("clip 0.3")
    assert _fold(script).interventions.items[-1].undo == SetClip(percentile=90)


@pytest.mark.parametrize(
    ("command", "old", "undo"),
    [
        ("lr set 0.001", "2e-4", ScaleLr(factor=0.5)),
        ("clip off", "0.9", SetClip(value=0.9)),
        ("policy nonfinite halt", "nonfinite rollback", SetPolicy(nonfinite="rollback")),
        ("policy autopilot act", "autopilot off", SetPolicy(autopilot="off")),
        ("pause", "running", None),
        ("warmup again", "", None),
    ],
)
def test_a_command_of_an_old_journal_can_be_undone(
    command: str, old: str, undo: AnyCommand | None
) -> None:
    script = Script(settings=RunSettings(lr_scale=0.5, clip=0.9)).start().run().train(5)
    script.add(CommandApplied(id="c1", command=command, old=old, issuer="ann"))
    view = _fold(script)
    assert view.interventions.items[-1].undo == undo
    assert (view.lr_scale, view.clip) == (0.5, 0.9)


def _step(script: Script) -> StepFinished:
    script.step += 1
    event = script.records[-3].event
    assert isinstance(event, StepFinished)
    return event


def test_a_failed_command_says_why() -> None:
    script = Script().start().run().train(1)
    script.add(CommandAccepted(id="c", command="eval", issuer="ann"))
    script.add(CommandFailed(id="c", command="eval", reason="no eval data"))
    item = _fold(script).interventions.find("c")
    assert item is not None
    assert item.phase is Phase.FAILED
    assert item.outcome() == "failed: no eval data"


def test_loading_shows_progress_and_no_steps() -> None:
    view = _fold(loading())
    assert view.progress == ProgressMade(label="Loading weights", done=212, total=272)
    assert view.last is None


def test_a_search_shows_its_progress_until_it_ends() -> None:
    progress = ProgressMade(label="culprit of spike-9", done=3, total=20)
    ended = CulpritsFound(anomaly="spike-9", anomaly_step=9, search=CulpritSearch(verdict="found"))
    events = [
        Record(seq=1, time=0.0, step=9, timeline=1, event=progress),
        Record(seq=2, time=0.0, step=9, timeline=1, event=ended),
    ]
    assert apply(RunView(), events[0]).progress == progress
    assert apply_many(RunView(), events).progress is None


def test_an_end_is_kept_with_its_error() -> None:
    view = _fold(failed())
    assert view.state is RunState.FAILED
    assert view.ended is not None
    assert "out of memory" in view.ended.error


def test_a_new_start_forgets_the_end() -> None:
    script = failed()
    started = script.records[0].event
    script.add(started)
    view = _fold(script)
    assert view.ended is None
    assert view.state is RunState.STARTING


def test_the_log_is_bounded() -> None:
    script = Script().start()
    for n in range(LOG_LIMIT + 100):
        script.add(LogEmitted(level="info", text=str(n)))
    view = _fold(script)
    assert len(view.log) == LOG_LIMIT
    assert view.log[-1].text == str(LOG_LIMIT + 99)


def test_pauses_do_not_enter_the_pace() -> None:
    script = Script().start().run().train(30)
    script.add(StateChanged(state=RunState.PAUSED)).add(
        StateChanged(state=RunState.RUNNING), after_s=3600
    )
    view = _fold(script.train(1))
    assert max(view.pace.intervals_s) < 10
    assert view.eta_s == pytest.approx((5000 - 31) * 4.8, rel=0.01)


def test_the_same_state_twice_is_harmless() -> None:
    script = Script().start().run().run().train(1)
    script.add(RunEnded(state=RunState.STOPPED, exit_code=0))
    assert _fold(script).state is RunState.STOPPED


def test_a_view_does_not_grow_with_the_length_of_its_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Curves merge their older points, and of everything else the newest are kept."""
    monkeypatch.setattr("fttui.tui.view_model.series.CAPACITY", 256)
    monkeypatch.setattr("fttui.tui.view_model.reducer.LIST_LIMIT", 200)
    monkeypatch.setattr("fttui.tui.view_model.reducer.LOG_LIMIT", 400)
    monkeypatch.setattr("fttui.tui.view_model.interventions.LIMIT", 200)
    script = Script().start().run()
    view, sizes, seen = RunView(), [], 0
    for _ in range(5):
        for _ in range(200):
            script.train(1).command("lr scale 1", "1", "1").add(spike(script))
            script.add(NoteAdded(text="n")).add(LogEmitted(level="info", text="l"))
            script.add(SampleGenerated(prompt="p", text="t"))
        view = apply_many(view, script.records[seen:])
        seen = len(script.records)
        curves = [series._store._buffer.nbytes for series in view.branch.curves.values()]
        lists = [len(view.log), len(view.marks), len(view.anomalies), len(view.samples)]
        sizes.append([sum(curves), *lists, len(view.interventions)])
    assert sizes[-1] == sizes[-2] == sizes[-3]
    assert max(sizes[-1][1:]) <= 400


@pytest.mark.parametrize("severity", ["alarm", "watch", "info"])
def test_an_anomaly_is_marked_by_how_grave_it_is(severity: str) -> None:
    raised = AnomalyRaised(id="a7", kind="plateau", severity=severity, headline="flat")
    view = apply_many(RunView(), [Record(seq=1, time=1.0, step=7, timeline=1, event=raised)])
    (mark,) = view.marks
    assert (mark.kind, mark.step) == (severity, 7)
    assert mark.kind in MARK_SHAPE


def test_benchmarks_join_the_curves_at_their_checkpoints_in_any_order() -> None:
    script = eventful()  # rolled back to step 1,200, now on timeline 2
    base = BenchmarkScore(value=0.8, base=0.5)
    found = [
        result(0.7, step=1240, timeline=2),
        result(0.6, step=1220, timeline=2),
        result(0.9, step=1240, timeline=2, scores={"acc": base}),
        result(0.4, step=400, timeline=1),
    ]
    before = _fold(script).time
    for one in found:
        script.add(BenchmarkFinished(result=one, after_end=True))
    view = _fold(script)
    assert view.benchmarks == tuple(found)
    assert view.time == before, "no time of the run has passed"
    name = "bench.words.acc"
    own, first = view.branches[-1].curves, view.branches[0].curves
    assert (own[name].xs.tolist(), own[name].ys.tolist()) == ([1220, 1240], [0.6, 0.8])
    assert own[f"{name}.change"].ys.tolist() == [pytest.approx(0.3)]
    assert first[name].xs.tolist() == [400]
    assert view.live_value(name, 1200) == 0.4
    assert [mark.step for mark in view.marks[-4:]] == [1240, 1220, 1240, 400]


def test_a_variant_that_trained_beside_the_run_is_a_branch_that_is_undone() -> None:
    script = eventful()
    before = _fold(script)
    script.rollback("step-001200", 1200)
    for at in range(1201, 1205):
        metrics = {"loss": 0.5} if at == 1204 else {}
        script.add(VariantStep(variant="lr 2e-4", at=at, loss=3.0 - 0.1 * at % 7, metrics=metrics))
    beside = _fold(script)
    assert beside.step == 1200, "the run has not trained them"
    assert beside.last == before.last
    curves = beside.branch.curves
    assert curves["loss"].xs.tolist() == [1201, 1202, 1203, 1204]
    assert curves["eval.loss"].last == (1204.0, 0.5)
    assert curves["loss~0.98"].xs.tolist() == [1201, 1202, 1203, 1204]
    script.rollback("step-001200", 1200)
    view = _fold(script)
    undone = [(beside.branches[n].start, end) for n, _, end in abandoned(view.branches)]
    assert undone[-1] == (1200, 1204)


def test_a_benchmark_that_failed_is_a_warning_and_no_point() -> None:
    script = eventful()
    marks = _fold(script).marks
    failed = result(step=1240, timeline=2, scores={}, error="no task 'words'")
    script.add(BenchmarkFinished(result=failed))
    view = _fold(script)
    assert (view.log[-1].level, view.log[-1].text) == ("warning", failed.text)
    assert "benchmark words at step-001240 failed: no task 'words'" in failed.text
    assert view.marks == marks
    assert not [name for name in view.branch.curves if name.startswith("bench")]
