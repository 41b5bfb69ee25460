from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from textual.binding import Binding

from fttui.engine.protocol.commands import COMMANDS
from fttui.engine.protocol.requests import Beat
from fttui.engine.protocol.states import RunState
from fttui.tui.actions import (
    ACTION_OF,
    ACTIONS,
    bindings,
    key_faults,
    label_of,
    spec_now,
    why_not,
)
from fttui.tui.screens.handlers.action_handlers import HANDLERS
from fttui.tui.view_model.app_state import AppState, fold
from fttui.tui.view_model.connection_port import BeatArrived, Link, LinkChanged, RecordsArrived
from tests.support.session_double import Script, eventful, live_spike


def _state(script: Script, link: Link = Link.LIVE) -> AppState:
    state = AppState(run_id="r", viewer="me", issuer="ann@laptop")
    return fold(state, [RecordsArrived(script.records), LinkChanged(link)], script.now)


@pytest.mark.parametrize("action", ACTIONS, ids=lambda a: a.id)
def test_every_action_has_key_words_help_and_deed(action) -> None:
    assert action.keys
    assert action.label
    assert len(action.help) > 10
    assert action.group
    assert action.id in HANDLERS


def test_there_is_no_deed_without_an_action() -> None:
    assert set(HANDLERS) == set(ACTION_OF)
    assert len(ACTION_OF) == len(ACTIONS)


def test_every_command_of_the_protocol_can_be_reached_by_a_key() -> None:
    reachable = {verb for action in ACTIONS for verb in action.verbs}
    assert {spec.verb for spec in COMMANDS} <= reachable


def test_no_key_means_two_things_on_a_screen() -> None:
    assert key_faults({}) == []
    assert "space is assigned to run.pause and run.stop" in key_faults({"run.stop": "space"})
    assert key_faults({"run.pauze": "b"}) == [
        "there is no action 'run.pauze'; did you mean 'run.pause'?"
    ]
    assert "lists all actions" in key_faults({"zzz": "b"})[0]


def test_bindings_can_be_rebound_by_action_id() -> None:
    made = Binding.make_bindings(bindings("run", "plots", "list", "runs", "ranks"))
    assert {b.id for b in made} == set(ACTION_OF)


@pytest.mark.parametrize("state", list(RunState))
def test_an_action_is_refused_exactly_where_its_command_is(state: RunState) -> None:
    proposed = _state(eventful().proposal("lr scale 0.5"))
    shown = replace(proposed, run=replace(proposed.run, state=state))
    for action in (a for a in ACTIONS if a.commands):
        spec = spec_now(action, shown)
        assert spec is not None
        if spec.why_illegal(state):
            assert why_not(action, shown), action.id
        elif action.id not in {"anomaly.recover", "data.mix"}:  # these need more than a state
            assert why_not(action, shown) is None, action.id


def test_what_is_refused_says_why() -> None:
    state = _state(eventful())
    other = Beat(time=0, last_seq=1, engine_alive=True, controller="bob@lab", controller_viewer="b")
    taken = fold(state, [BeatArrived(other)], 0)
    assert why_not(ACTION_OF["lr.change"], taken) == "bob@lab has control; take it over with t"
    assert why_not(ACTION_OF["control.toggle"], taken) is None
    assert why_not(ACTION_OF["anomaly.recover"], state) == "no open incident"
    assert why_not(ACTION_OF["data.mix"], state) == "the training data have a single source"
    assert why_not(ACTION_OF["anomaly.recover"], _state(live_spike())) is None
    assert "no checkpoint" in str(
        why_not(ACTION_OF["run.rollback"], _state(Script().start().run().train(1)))
    )
    lost = _state(eventful(), Link.LOST)
    assert "connection to the run lost" in str(why_not(ACTION_OF["run.pause"], lost))
    dead = _state(eventful(), Link.ENDED)
    assert "fttui run --resume r" in str(why_not(ACTION_OF["run.pause"], dead))
    watching = replace(state, read_only=True)
    assert why_not(ACTION_OF["run.stop"], watching) == "this viewer is read-only"
    assert why_not(ACTION_OF["go.log"], dead) is None


def test_the_pause_key_is_true_for_the_state() -> None:
    state = _state(eventful())
    paused = replace(state, run=replace(state.run, state=RunState.PAUSED))
    pause = ACTION_OF["run.pause"]
    assert (label_of(pause, state), label_of(pause, paused)) == ("pause", "resume")


def test_what_the_trainer_of_the_run_cannot_do_is_refused_with_its_reason() -> None:
    state = _state(eventful())
    assert state.run.started is not None
    started = msgspec.structs.replace(
        state.run.started, refused={"rollback": "FSDP shards the weights"}, script="python t.py"
    )
    watched = replace(state, run=replace(state.run, started=started))
    reason = why_not(ACTION_OF["run.rollback"], watched)
    assert reason == "not possible in this run: FSDP shards the weights"
    assert why_not(ACTION_OF["lr.change"], watched) is None
    ended = replace(watched, run=replace(watched.run, state=RunState.FINISHED))
    assert "start its script again" in str(why_not(ACTION_OF["lr.change"], ended))
