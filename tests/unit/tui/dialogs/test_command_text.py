"""What a question is called is what yes will do, for everything a report may recommend."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import msgspec
import pytest

from fttui.engine.core.anomaly import ALARM, WATCH, Alert
from fttui.engine.core.recovery import RecoveryAttempt, RecoveryForecast
from fttui.engine.core.reports.advice import CAUSES, AdviceContext, recommend
from fttui.engine.protocol.commands import (
    Evaluate,
    Recover,
    ResetLr,
    Rollback,
    ScaleLr,
    SetLr,
    Stop,
    parse_command,
)
from fttui.engine.protocol.events import StateChanged
from fttui.engine.protocol.states import RunState
from fttui.tui.dialogs.command_text import gives_up, in_words, name_of
from fttui.tui.text import format as fmt
from fttui.tui.view_model.app_state import AppState
from fttui.tui.view_model.reducer import apply_many
from fttui.tui.view_model.run_view import RunView
from tests.support.session_double import live_spike


def first_ways() -> Iterator[str]:
    """The first action of every report there can be."""
    attempt = RecoveryAttempt(
        anomaly="a1241", checkpoint="step-000800-t1", step=800, lr_scale=0.5, clip=0.3, skip=461
    )
    for kind, severity, rollbacks, planned, high in product(
        CAUSES, (WATCH, ALARM), (0, 1, 2), (None, attempt), (None, 0.6)
    ):
        alert = Alert(
            id="a1241", kind=kind, severity=severity, step=1241, headline="odd", value=9.0
        )
        now = AdviceContext(
            rollbacks=rollbacks, norm_high=high, recovery=RecoveryForecast(attempt=planned)
        )
        if actions := recommend(alert, now):
            yield actions[0].command


WAYS = sorted(set(first_ways()))


@pytest.fixture(scope="module")
def state() -> AppState:
    return AppState(run=apply_many(RunView(), live_spike().records))


def test_reports_recommend_more_than_recoveries() -> None:
    verbs = {way.split()[0] for way in WAYS}
    assert verbs >= {"recover", "lr", "clip", "eval", "profile", "stop", "checkpoint"}


@pytest.mark.parametrize("way", WAYS)
def test_each_has_its_own_name_and_says_what_it_does(state: AppState, way: str) -> None:
    command = parse_command(way)
    name = name_of(command)
    assert ("recover" in name) == isinstance(command, Recover)
    assert gives_up(command) == isinstance(command, Recover | Rollback | Stop)
    rows = in_words(state, command)
    assert rows
    assert ("Back to" in rows[0]) == isinstance(command, Recover | Rollback)
    expected = {
        "lr": "→", "clip": "(max norm) 0.500 →", "eval": "took 9", "profile": "the next 2 steps",
        "checkpoint": "at step 1,241, which is never removed", "recover": "441 steps",
    }  # fmt: skip
    assert expected.get(way.split()[0], "step") in " ".join(rows)


def test_stopping_says_what_is_lost(state: AppState) -> None:
    assert "loses the last 41 steps of work" in in_words(state, Stop(save=False))[0]
    assert in_words(state, Stop(save=False))[0].startswith("Ends the run after step 1,242 and")
    assert "writes a checkpoint" in in_words(state, Stop())[0]
    held = AppState(run=replace(state.run, state=RunState.PAUSED))
    assert in_words(held, Stop())[0] == "Writes a checkpoint and ends the run."
    assert in_words(held, Stop(save=False))[0].startswith("Ends the run at step 1,241 and")
    assert "not started yet" in in_words(AppState(), Stop())[0]
    assert AppState().state is RunState.STARTING


def test_a_stopped_script_is_not_resumed_by_fttui(state: AppState) -> None:
    assert state.run.started is not None
    started = msgspec.structs.replace(state.run.started, script="python train.py")
    watched = replace(state, run=replace(state.run, started=started))
    words = " ".join(in_words(watched, Stop()))
    assert "writes a checkpoint and ends the training" in words
    assert "the rest of the script runs" in words
    assert "--resume" not in words


def test_a_stop_promises_no_checkpoint_that_the_trainer_refuses(state: AppState) -> None:
    assert state.run.started is not None
    started = msgspec.structs.replace(
        state.run.started, script="python train.py", refused={"checkpoint": "FSDP shards the state"}
    )
    watched = replace(state, run=replace(state.run, started=started))
    assert in_words(watched, Stop())[-1] == "Nothing is saved: FSDP shards the state"


@pytest.mark.parametrize("held", [RunState.PAUSED, RunState.HALTED])
def test_a_pause_lasts_over_what_is_done_meanwhile_and_a_halt_ends_by_going_back(
    held: RunState,
) -> None:
    script = live_spike().add(StateChanged(state=held))
    state = AppState(run=apply_many(RunView(), script.records))
    assert f"the run stays {held.value}" in in_words(state, Evaluate())[0]
    then = "The run stays paused" if held is RunState.PAUSED else "Training continues"
    assert any(row.startswith(then) for row in in_words(state, Rollback(checkpoint="last")))


def test_recover_is_described_by_the_rollback_that_its_report_recommends() -> None:
    by_hand = "rollback step-000800-t1 lr=0.3 clip=0.4 skip=470"
    run = apply_many(RunView(), live_spike("recover spike-1241", by_hand).records)
    state = AppState(run=run)
    for typed in ("recover spike-1241", "recover a1241", "recover"):
        rows = in_words(state, parse_command(typed))
        assert rows[:-1] == in_words(state, parse_command(by_hand))
        assert "probation" in rows[-1]


def test_recover_without_a_planned_rollback_names_the_checkpoint_it_knows() -> None:
    run = apply_many(RunView(), live_spike("clip 0.3").records)
    rows = in_words(AppState(run=run), Recover(anomaly="a1241"))
    assert rows[0].startswith("Back to step 800;")
    assert not any("LR scale" in row for row in rows)
    assert "lower learning rate" in rows[2]
    unknown = in_words(AppState(run=run), Recover(anomaly="x"))
    assert unknown[0] == "Back to the newest good checkpoint before the first alert."


@pytest.mark.parametrize(
    ("command", "factor"),
    [(ScaleLr(factor=0.25), 0.25), (ResetLr(), 1.0), (SetLr(value=0.5), None)],
)
def test_a_rate_is_shown_before_and_after(
    state: AppState, command: ScaleLr | ResetLr | SetLr, factor: float | None
) -> None:
    assert state.run.last is not None
    schedule = state.run.last.lr_schedule
    assert schedule > 0
    before = fmt.learning_rate(schedule * state.run.lr_scale)
    after = fmt.learning_rate(0.5 if factor is None else schedule * factor)
    assert f"{before} → {after}" in "\n".join(in_words(state, command))
    zero, none = fmt.learning_rate(0.0), 0.5 if factor is None else 0.0
    assert f"{zero} → {fmt.learning_rate(none)}" in "\n".join(in_words(AppState(), command))
