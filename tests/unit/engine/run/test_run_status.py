from __future__ import annotations

import pytest

from fttui.engine.protocol.events import LogEmitted, Record, RunEnded, RunStarted, StateChanged
from fttui.engine.protocol.states import RunState
from fttui.engine.run.journal_summary import summarize_records
from fttui.engine.run.run_status import EngineStatus, LifecycleStatus, current_state
from tests.contract.examples import example
from tests.support.engine_double import step_event

FAILED = RunEnded(state=RunState.FAILED, exit_code=8, error="no memory")


def engine(incarnation: int = 1, started: float = 0.0, *, alive: bool = True) -> EngineStatus:
    return EngineStatus(7, incarnation, started, alive)


def record(seq: int, event: object) -> Record:
    return Record(seq=seq, time=float(seq), step=seq, timeline=1, event=event)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("reported", "known", "alive", "shown"),
    [
        (None, False, False, RunState.STARTING),
        (None, True, True, RunState.STARTING),
        (None, True, False, RunState.LOST),
        (RunState.PAUSED, True, True, RunState.PAUSED),
        (RunState.PAUSED, True, False, RunState.LOST),
        (RunState.PAUSED, False, False, RunState.LOST),
        (RunState.FAILED, True, True, RunState.FAILED),
        (RunState.FAILED, True, False, RunState.FAILED),
    ],
)
def test_a_dead_process_turns_every_state_but_an_end_into_lost(
    reported: RunState | None, known: bool, alive: bool, shown: RunState
) -> None:
    assert current_state(reported, engine_known=known, engine_alive=alive) is shown


def test_before_the_first_event_there_was_no_engine() -> None:
    status = LifecycleStatus()
    assert (status.incarnation, status.reported) == (0, None)
    assert (status.exit_code, status.error) == (None, "")


def test_events_of_other_kinds_change_no_state() -> None:
    status = LifecycleStatus()
    status.add(LogEmitted(level="info", text="hi"), 1.0)
    assert status.reported is None
    status.add(StateChanged(state=RunState.PAUSED), 2.0)
    status.add(step_event(4), 3.0)
    assert status.reported is RunState.PAUSED


def test_a_newer_engine_supersedes_what_the_journal_reports() -> None:
    status = LifecycleStatus()
    status.add(example(RunStarted), 1.0)
    status.add(FAILED, 2.0)
    newer = status.incarnation + 1
    assert status.state(engine(status.incarnation)) is RunState.FAILED
    assert status.state(engine(newer)) is RunState.STARTING
    assert status.state(engine(newer, alive=False)) is RunState.LOST


def test_steps_after_missing_records_mean_running_and_clear_an_old_error() -> None:
    ends = [record(1, example(RunStarted)), record(2, FAILED), record(50, step_event(50))]
    status = summarize_records(ends).status
    assert (status.reported, status.error, status.exit_code) == (RunState.RUNNING, "", None)
    assert status.state(engine(incarnation=9)) is RunState.RUNNING


def test_a_state_read_after_missing_records_holds_through_later_steps() -> None:
    paused = record(50, StateChanged(state=RunState.PAUSED))
    ends = [record(1, example(RunStarted)), paused, record(51, step_event(51))]
    assert summarize_records(ends).status.reported is RunState.PAUSED


def test_records_in_a_row_are_not_taken_for_missing_ones() -> None:
    saving = record(2, StateChanged(state=RunState.SAVING))
    row = [record(1, example(RunStarted)), saving, record(3, step_event(3))]
    assert summarize_records(row).status.reported is RunState.SAVING


def test_after_missing_records_an_engine_is_newer_than_an_end_by_its_start_time() -> None:
    status = summarize_records([record(1, example(RunStarted)), record(50, FAILED)]).status
    assert status.state(engine(9, started=50.0)) is RunState.FAILED
    assert status.state(engine(9, started=50.5)) is RunState.STARTING
    assert status.state(engine(9, started=50.5, alive=False)) is RunState.LOST
