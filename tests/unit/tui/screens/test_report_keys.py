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
from fttui.tui.dialogs.diagnosis import diagnose
from fttui.tui.dialogs.diagnosis import to_markdown as markdown_of
from fttui.tui.preferences import Preferences
from fttui.tui.screens.report_keys import key_of_advice
from fttui.tui.view_model.app_state import AppState
from fttui.tui.view_model.connection_port import Link
from fttui.tui.view_model.incidents.incident import Incident
from fttui.tui.view_model.reducer import apply_many
from fttui.tui.view_model.run_view import RunView
from tests.support.report_scene import spike_report
from tests.support.session_double import FakeSession, live_spike
from tests.unit.tui.app.driving import driven, text_of, until

REPORT = """# Training Anomaly Report

The loss jumped.

## Likely Causes

1. an outlier batch

## Recommended Actions

1. `recover a1241`: goes back
"""
WAYS = ("recover a1241", "rollback step-000800-t1 lr=0.5", "pause", "brew coffee")


def state_of(*, keys: dict[str, str] | None = None) -> AppState:
    run = apply_many(RunView(), live_spike(*WAYS).records)
    state = AppState(run=run, keys=keys or {})
    return replace(state, link=replace(state.link, link=Link.LIVE))


def current(state: AppState) -> Incident:
    found = state.run.current_incident
    assert found is not None
    return found


def keys_of(state: AppState, incident: Incident | None = None) -> list[str | None]:
    found = incident or current(state)
    actions = diagnose(state.run, found, {found.main.event.report: REPORT}).actions
    return [key_of_advice(advice, found, state) for advice in actions]


def test_each_command_gets_the_key_that_sends_it() -> None:
    assert keys_of(state_of()) == ["R", "r", "space", None, "F"]


def test_they_are_the_users_own_keys() -> None:
    keys = {"anomaly.recover": "A", "run.rollback": "B", "run.pause": "f9"}
    assert keys_of(state_of(keys=keys)) == ["A", "B", "f9", None, "F"]


def test_the_recovery_key_belongs_to_the_current_incident_only() -> None:
    state = state_of()
    other = replace(current(state), id="a3")
    assert keys_of(state, other)[0] is None


def test_a_run_that_takes_no_commands_shows_no_keys() -> None:
    assert set(keys_of(replace(state_of(), read_only=True))) == {None}
    script = live_spike(*WAYS).add(StateChanged(state=RunState.PAUSED))
    state = replace(state_of(), run=apply_many(RunView(), script.records))
    assert keys_of(state)[2] is None, "space resumes a paused run"


def test_a_diagnosis_says_first_what_happened_and_folds_the_figures() -> None:
    state = state_of()
    page = to_markdown(spike_report())
    found = diagnose(state.run, current(state), {current(state).main.event.report: page})
    assert found.title == "Loss spike at step 1,241: loss 1.400 → 9.100"
    assert found.what.startswith("The loss jumped to 9.1")
    assert "1241 ▲" in found.plot
    assert [section.title for section in found.sections][:2] == ["Evidence", "Samples"]
    assert "Recommended commands" not in [section.title for section in found.sections]
    text = markdown_of(found)
    assert text.index("recover a1241") < text.index("## Evidence") < text.index("## Alarms (1)")


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
    session = FakeSession(live_spike(*WAYS))
    session.fetch_report = answered(REPORT)  # type: ignore[assignment, method-assign]
    async with driven(session, size=(200, 50), preferences=Preferences(keys=keys)) as (app, pilot):
        await until(pilot, lambda: "A recover" in text_of(app))
        assert "f3 report" in text_of(app)
        assert "f10 detach" in text_of(app)
        await pilot.press("f3")
        await until(pilot, lambda: "A recover" in text_of(app))
        await pilot.press("enter")
        await until(pilot, lambda: "recover a1241 [A]" in text_of(app))
        assert "rollback step-000800-t1 lr=0.5 [B]" in text_of(app)
        await pilot.press("escape", "f8", "x")
        await until(pilot, lambda: "appears on the samples screen (f7)" in text_of(app))
        await pilot.press("escape")
        await pilot.resize_terminal(40, 10)
        await until(pilot, lambda: "f10 detaches" in text_of(app))


def answered(report: str) -> Callable[[str], Coroutine[Any, Any, str]]:
    async def fetch(name: str) -> str:
        return report

    return fetch


def test_a_report_offers_the_search_for_samples_until_they_are_found() -> None:
    state = state_of()
    found = current(state)
    name = found.main.event.report

    def offered(report: str, incident: Incident = found) -> list[str]:
        return [a.way.text for a in diagnose(state.run, incident, {name: report}).actions]

    assert f"culprit {found.id}" in offered(REPORT)
    assert f"culprit {found.id}" not in offered(f"{REPORT}\n## Culprits\n")
    slow = replace(found.main, event=structs.replace(found.main.event, kind="throughput_drop"))
    assert "culprit" not in " ".join(offered(REPORT, replace(found, alarms=(slow,))))


def test_no_key_is_offered_where_the_trainer_refuses_the_search() -> None:
    state = state_of()
    assert isinstance(state.run.started, RunStarted)
    refused = structs.replace(state.run.started, refused={"culprit": "the script has the data"})
    watched = replace(state, run=replace(state.run, started=refused))
    assert keys_of(watched)[-1] is None
