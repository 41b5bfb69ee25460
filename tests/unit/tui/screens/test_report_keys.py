"""Reports hold commands; the app adds the user's own keys."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from fttui.engine.core.reports.page import to_markdown
from fttui.engine.protocol.commands import parse_command
from fttui.engine.protocol.events import RunStarted, StateChanged
from fttui.engine.protocol.states import RunState
from fttui.tui.actions import key_for
from fttui.tui.preferences import Preferences
from fttui.tui.screens.report_keys import culprit_hint, with_keys
from fttui.tui.view_model.app_state import AppState
from fttui.tui.view_model.connection_port import Link
from fttui.tui.view_model.reducer import apply_many
from fttui.tui.view_model.run_view import Anomaly, RunView
from tests.support.report_scene import spike_report
from tests.support.session_double import FakeSession, live_spike
from tests.unit.tui.app.driving import driven, text_of, until

REPORT = """# Training Anomaly Report

## Likely Causes

1. an outlier batch

## Recommended Actions

1. `recover a1241`: goes back
2. `rollback step-000800-t1 lr=0.5`: does the same by hand
3. `pause`: most spikes recover
4. `brew coffee`: of another version
"""
OLD = REPORT.replace("`:", "` [§]:")
"""As versions before wrote it, with a key."""


def state_of(*, keys: dict[str, str] | None = None) -> AppState:
    state = AppState(run=apply_many(RunView(), live_spike().records), keys=keys or {})
    return replace(state, link=replace(state.link, link=Link.LIVE))


def current(state: AppState) -> Anomaly:
    found = state.run.current_anomaly
    assert found is not None
    return found


@pytest.mark.parametrize("report", [REPORT, OLD])
def test_each_command_gets_the_key_that_sends_it(report: str) -> None:
    state = state_of()
    text = with_keys(report, current(state), state)
    assert "1. `recover a1241` [R]: goes back" in text
    assert "2. `rollback step-000800-t1 lr=0.5` [r]: does" in text
    assert "3. `pause` [space]: most" in text
    assert "4. `brew coffee`: of another version" in text
    assert "1. an outlier batch\n" in text


@pytest.mark.parametrize("report", [REPORT, OLD])
def test_they_are_the_users_own_keys(report: str) -> None:
    state = state_of(keys={"anomaly.recover": "A", "run.rollback": "B", "run.pause": "f9"})
    text = with_keys(report, current(state), state)
    assert [text.count(f"` [{key}]:") for key in ("A", "B", "f9")] == [1, 1, 1]
    assert not any(f"[{key}]" in text for key in ("R", "r", "space", "§"))


def test_the_first_line_and_the_list_have_the_key_of_the_first_command() -> None:
    state, page = state_of(), to_markdown(spike_report())
    lines = with_keys(page, current(state), state).splitlines()
    todo = "`recover a1241` [R], unless the loss returns to its usual level"
    assert lines[0] == f"# Loss spike at step 1241: {todo}"
    assert any(line.startswith("1. `recover a1241` [R]: Goes back 441 steps") for line in lines)
    assert any(line.startswith("3. `pause` [space]: Holds") for line in lines)
    other = replace(current(state), step=3)
    assert with_keys(page, other, state).splitlines()[0] == page.splitlines()[0]


def test_a_report_that_recommends_nothing_has_no_keys() -> None:
    state, page = state_of(), to_markdown(spike_report([1.2, 1.3, 1.4, 1.5, 1.3, 1.2, 1.4, 40.0]))
    assert "nothing to do, one odd record explains it" in page
    assert with_keys(page, current(state), state) == page


def test_the_recovery_key_belongs_to_the_current_anomaly_only() -> None:
    state = state_of()
    other = replace(current(state), step=3)
    assert "1. `recover a1241`: goes back" in with_keys(REPORT, other, state)


@pytest.mark.parametrize("report", [REPORT, OLD])
def test_a_run_that_takes_no_commands_shows_none(report: str) -> None:
    state = replace(state_of(), read_only=True)
    assert with_keys(report, current(state), state) == REPORT
    script = live_spike().add(StateChanged(state=RunState.PAUSED))
    state = replace(state_of(), run=apply_many(RunView(), script.records))
    assert "3. `pause`: most" in with_keys(report, current(state), state)


@pytest.mark.parametrize(
    ("command", "key"),
    [
        ("lr scale 0.5", "l"),
        ("lr set 1e-4", "l"),
        ("clip 1", "c"),
        ("stop no-save", "x"),
        ("eval", "e"),
        ("policy nonfinite halt", "P"),
        ("checkpoint", "s"),
        ("checkpoint pin leak", "S"),
        ("profile 2", "T"),
        ("pause", "space"),
        ("recover", None),
    ],
)
def test_commands_have_the_key_of_their_action(command: str, key: str | None) -> None:
    assert key_for(parse_command(command), state_of()) == key


async def test_every_screen_shows_the_users_own_keys() -> None:
    keys = {
        "anomaly.recover": "A", "run.rollback": "B", "go.anomalies": "f3", "go.samples": "f7",
        "app.detach": "f10", "run.sample": "f8",
    }  # fmt: skip
    session = FakeSession(live_spike())
    session.fetch_report = answered(REPORT)  # type: ignore[assignment, method-assign]
    async with driven(session, size=(200, 50), preferences=Preferences(keys=keys)) as (app, pilot):
        await until(pilot, lambda: "A rollback" in text_of(app))
        assert "f3 report" in text_of(app)
        assert "f10 detach" in text_of(app)
        await pilot.press("f3")
        await until(pilot, lambda: "A roll back" in text_of(app))
        assert "A rollback step-000800-t1" in text_of(app)
        await pilot.press("enter")
        await until(pilot, lambda: "[A]: goes back" in text_of(app))
        assert "[B]: does the same by hand" in text_of(app)
        await pilot.press("escape", "f8", "x")
        await until(pilot, lambda: "appears on the samples screen (f7)" in text_of(app))
        await pilot.press("escape")
        await pilot.resize_terminal(40, 10)
        await until(pilot, lambda: "f10 detaches" in text_of(app))


def answered(report: str) -> Callable[[str], Coroutine[Any, Any, str]]:
    async def fetch(name: str) -> str:
        return report

    return fetch


def test_a_report_says_how_to_find_the_samples_until_they_are_found() -> None:
    state = state_of()
    anomaly = current(state)
    hint = culprit_hint(REPORT, anomaly, state)
    assert f"`culprit {anomaly.event.id}` [F] finds the samples" in hint
    assert culprit_hint(f"{REPORT}\n## Culprits\n", anomaly, state) == ""
    slow = replace(anomaly, event=structs.replace(anomaly.event, kind="throughput_drop"))
    assert culprit_hint(REPORT, slow, state) == ""


def test_no_search_is_offered_where_the_trainer_refuses_it() -> None:
    state = state_of()
    assert isinstance(state.run.started, RunStarted)
    refused = structs.replace(state.run.started, refused={"culprit": "the script has the data"})
    watched = replace(state, run=replace(state.run, started=refused))
    assert culprit_hint(REPORT, current(state), watched) == ""
