from __future__ import annotations

import pytest

from fttui.engine.core.lifecycle import TRANSITIONS, IllegalTransition, check_transition
from fttui.engine.protocol.states import RunState


def test_every_state_has_a_row_and_nothing_follows_itself() -> None:
    assert set(TRANSITIONS) == set(RunState)
    assert all(state not in following for state, following in TRANSITIONS.items())


@pytest.mark.parametrize("state", [s for s in RunState if s.ended])
def test_an_ended_run_only_starts_again(state: RunState) -> None:
    assert TRANSITIONS[state] == {RunState.STARTING}


@pytest.mark.parametrize("state", [s for s in RunState if not s.ended])
def test_every_live_state_may_fail_or_be_lost(state: RunState) -> None:
    check_transition(state, RunState.FAILED)
    check_transition(state, RunState.LOST)


@pytest.mark.parametrize("state", [s for s in RunState if s.busy])
def test_a_busy_state_leads_back_to_work(state: RunState) -> None:
    check_transition(state, RunState.RUNNING)
    check_transition(state, RunState.PAUSED)


def test_every_state_can_be_reached_from_starting() -> None:
    reached = {RunState.STARTING}
    while new := {n for state in reached for n in TRANSITIONS[state]} - reached:
        reached |= new
    assert reached == set(RunState)


def test_an_illegal_change_names_both_states_and_the_way_out() -> None:
    with pytest.raises(IllegalTransition, match=r"stopping cannot become running; next can be: .*"):
        check_transition(RunState.STOPPING, RunState.RUNNING)


def test_a_halted_run_does_not_count_as_finished() -> None:
    with pytest.raises(IllegalTransition):
        check_transition(RunState.HALTED, RunState.FINISHED)
