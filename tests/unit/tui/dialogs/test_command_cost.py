"""The work that a rollback loses is counted on the timeline that training is on."""

from __future__ import annotations

import pytest

from fttui.tui.dialogs.command_cost import given_up, on_lineage
from fttui.tui.view_model.app_state import AppState
from fttui.tui.view_model.reducer import apply_many
from fttui.tui.view_model.run_view import RunView
from tests.support.session_double import STEP_S, Script


def branched() -> AppState:
    """Timeline 2 begins at 60 and has a checkpoint at 80, timeline 3 begins at 60 too."""
    script = Script().start().run().train(60).checkpoint().train(34)
    script.rollback("step-000060-t1", 60).train(20).checkpoint().train(5)
    script.rollback("step-000060-t1", 60).train(19)
    return AppState(run=apply_many(RunView(), script.records))


def test_a_checkpoint_of_an_abandoned_timeline_loses_what_came_after_the_fork() -> None:
    state = branched()
    shared, abandoned = state.run.checkpoints
    assert (shared.step, abandoned.step) == (60, 80)
    assert (on_lineage(state, shared), on_lineage(state, abandoned)) == (True, False)
    assert [given_up(state, c).steps for c in (shared, abandoned)] == [19, 19]


def test_the_time_lost_begins_at_the_fork() -> None:
    state = branched()
    lost = given_up(state, state.run.checkpoints[1])
    assert lost.seconds == pytest.approx(19 * STEP_S + 25 * STEP_S + 34 * STEP_S)


def test_a_checkpoint_before_all_rollbacks_loses_all_that_followed() -> None:
    script = Script().start().run().train(10).checkpoint().train(10).checkpoint().train(5)
    script.rollback("step-000020-t1", 20).train(7)
    state = AppState(run=apply_many(RunView(), script.records))
    assert [given_up(state, c).steps for c in state.run.checkpoints] == [17, 7]
