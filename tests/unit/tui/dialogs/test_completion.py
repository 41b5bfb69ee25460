"""Names are completed from what the run has, and names that it lacks are refused before sending."""

from __future__ import annotations

import pytest

from fttui.engine.protocol.commands import AverageCheckpoints
from fttui.tui.dialogs.completion import completed, completions
from fttui.tui.dialogs.prompts import read_average, read_command
from fttui.tui.view_model.app_state import AppState, fold
from fttui.tui.view_model.connection_port import RecordsArrived
from tests.support.session_double import Script, live_spike


def _state(script: Script) -> AppState:
    state = AppState(run_id="r", viewer="me", issuer="ann@laptop")
    return fold(state, [RecordsArrived(script.records)], script.now)


@pytest.mark.parametrize(
    ("typed", "continued"),
    [
        ("lr s", "lr s"),
        ("lr sc", "lr scale "),
        ("roll", "rollback "),
        ("rollback step-0008", "rollback step-000800-t1 "),
        ("rollback step-000800-t1 l", "rollback step-000800-t1 lr="),
        ("policy nonfinite h", "policy nonfinite halt "),
        ("policy autopilot p", "policy autopilot propose "),
        ("recover a124", "recover a1241 "),
        ("note ro", "note ro"),
        ("nonsense ", "nonsense "),
    ],
)
def test_tab_continues_as_far_as_it_is_certain(typed: str, continued: str) -> None:
    assert completed(typed, completions(typed, _state(live_spike()))) == continued


def test_what_can_follow_is_offered_newest_first() -> None:
    state = _state(live_spike())
    names = [c.name for c in reversed(state.run.checkpoints)]
    assert completions("rollback ", state) == [f"rollback {name}" for name in (*names, "last")]
    assert completions("rollback last lr=0.5 ", state) == [
        "rollback last lr=0.5 clip=",
        "rollback last lr=0.5 skip=",
    ]


@pytest.mark.parametrize(
    "typed", ["rollback 5", "rollback step-5 lr=0.5", "recover a1", "culprit b", "soup 800 5"]
)
def test_a_name_that_the_run_lacks_is_an_error(typed: str) -> None:
    asked = read_command(typed, _state(live_spike()))
    assert asked.command is None
    assert "existing " in asked.error


@pytest.mark.parametrize(
    "typed",
    [
        "rollback 800",
        "rollback last",
        "rollback step-000800-t1",
        "recover a1241",
        "recover",
        "soup 2",
    ],
)
def test_a_name_that_the_run_has_is_sent(typed: str) -> None:
    assert read_command(typed, _state(live_spike())).command is not None


def test_the_prompt_of_a_soup_takes_a_number_or_names() -> None:
    state = _state(live_spike())
    names = [c.name for c in state.run.checkpoints][:2]
    assert read_average("3", state).command == AverageCheckpoints(last=3)
    wanted = AverageCheckpoints(checkpoints=tuple(names))
    assert read_average(" ".join(names), state).command == wanted
    assert read_average("", state).needs
    assert "no checkpoint 'x'" in read_average(f"{names[0]} x", state).error
    assert "two checkpoints or more" in read_average("1", state).error
    assert completions(f"soup {names[0]} ", state)[0] != f"soup {names[0]} {names[0]}"


def test_before_the_first_checkpoint_there_is_no_last_one() -> None:
    asked = read_command("rollback last", _state(Script().start()))
    assert "existing checkpoints: none yet" in asked.error
