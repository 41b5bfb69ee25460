"""What the header says of a run, and what it leaves out where there is no room."""

from __future__ import annotations

import dataclasses

import pytest
from msgspec.structs import replace

from fttui.engine.protocol.events import StateChanged
from fttui.engine.protocol.requests import Beat
from fttui.engine.protocol.states import RunState
from fttui.tui.view_model.app_state import AppState, fold
from fttui.tui.view_model.connection_port import BeatArrived, Link, LinkChanged, RecordsArrived
from fttui.tui.widgets.header import Part, fitting, name_parts, progress_parts
from tests.support.session_double import FakeSession, Script, finished, undone
from tests.unit.tui.app.driving import driven, text_of, until


def _state(script: Script) -> AppState:
    return fold(AppState(), [RecordsArrived(script.records), LinkChanged(Link.LIVE)], script.now)


def _text(parts: list[Part], room: int = 400) -> str:
    return fitting(parts, room).plain


def test_the_run_is_named_with_its_task_and_its_model() -> None:
    named = _text(name_parts(_state(undone())))
    assert named == "smollm2-pairs ▸ timeline 2  contrastive · SmolLM2-135M-Instruct"


def test_elapsed_time_counts_on_between_steps_and_the_best_evaluation_is_live() -> None:
    script = undone()
    text = _text(progress_parts(_state(script), script.now + 60))
    took = script.now + 60 - script.records[0].time
    assert f"elapsed {took // 60:.0f} m {took % 60:.0f} s" in text
    assert text.endswith("best eval 2.600")


@pytest.mark.parametrize(
    ("state", "shown"),
    [
        (RunState.RUNNING, True), (RunState.EVALUATING, True), (RunState.PAUSED, False),
        (RunState.HALTED, False),
    ],
)  # fmt: skip
def test_a_run_that_holds_has_no_time_of_arrival(state: RunState, shown: bool) -> None:
    script = undone().add(StateChanged(state=state))
    assert ("ETA" in _text(progress_parts(_state(script), script.now))) is shown


def test_an_ended_run_says_how_long_it_took() -> None:
    script = finished()
    text = _text(progress_parts(_state(script), script.now + 3600))
    assert "after 24 m" in text
    assert "elapsed" not in text


def test_parts_go_in_the_order_of_their_rank_and_none_is_cut() -> None:
    parts = progress_parts(_state(undone()), 0.0)
    words = ("epoch", "elapsed", "best eval", "ETA")
    kept = []
    for room in range(140, 20, -1):
        text = _text(parts, room)
        kept.append(tuple(word for word in words if word in text))
    seen = list(dict.fromkeys(kept))
    assert seen == [
        ("epoch", "elapsed", "best eval", "ETA"), ("elapsed", "best eval", "ETA"),
        ("best eval", "ETA"), ("ETA",),
    ]  # fmt: skip


def test_a_long_name_is_shortened_before_anything_is_left_out() -> None:
    script = undone()
    state = _state(script)
    assert state.run.started is not None
    named = replace(state.run.started, name="an-experiment-with-a-very-long-name-20261130-101500")
    state = dataclasses.replace(state, run=dataclasses.replace(state.run, started=named))
    parts = [*name_parts(state), *progress_parts(state, script.now)]
    whole = _text(parts)
    text = _text(parts, len(whole) - 20)
    assert text.startswith("an-experimen…1130-101500 ▸ timeline 2")
    assert text.endswith(whole[len(state.name) :])


@pytest.mark.parametrize(("columns", "whole"), [(68, False), (90, True)])
async def test_the_time_of_arrival_is_not_cut_by_the_words_about_control(
    columns: int, whole: bool
) -> None:
    session = FakeSession(undone())
    async with driven(session, size=(columns, 24)) as (app, pilot):
        beat = Beat(time=session.script.now, last_seq=1, engine_alive=True, viewers=2)
        session.deliver(BeatArrived(beat))
        await until(pilot, lambda: "takes control" in text_of(app))
        assert "…" not in text_of(app).splitlines()[1]
        assert "ETA" in text_of(app)
        assert ("nobody controls" in text_of(app)) is whole
