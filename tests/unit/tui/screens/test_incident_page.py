"""The report of an incident: its actions are sent by enter or a digit, its figures are folded."""

from __future__ import annotations

from textual.widgets import Collapsible, DataTable

from fttui.engine.protocol.commands import parse_command
from fttui.tui.screens.handlers.sharing import shared_text
from fttui.tui.screens.incident_page import IncidentPage
from fttui.tui.screens.text_page import TextPage
from tests.support.session_double import FakeSession, eventful, live_spike
from tests.unit.tui.app.driving import driven, text_of, until

WAYS = ("clip 0.5", "lr scale 0.5", "pause")


async def test_a_digit_and_enter_send_an_action_after_a_confirmation() -> None:
    session = FakeSession(live_spike(*WAYS))
    async with driven(session, size=(80, 24)) as (app, pilot):
        await pilot.press("3", "enter")
        await until(pilot, lambda: isinstance(app.screen, IncidentPage))
        await until(pilot, lambda: "▸ 1. clip 0.5 [R]" in text_of(app))
        assert "2. lr scale 0.5 [l]" in text_of(app)
        await pilot.press("2")
        await until(pilot, lambda: "incident: Loss spike" in text_of(app))
        assert session.submitted == []
        await pilot.press("y")
        await until(pilot, lambda: session.submitted == [parse_command("lr scale 0.5")])
        assert session.reasons == ["anomaly a1241"]
        await pilot.press("enter", "y")
        await until(pilot, lambda: len(session.submitted) == 2)


async def test_a_digit_without_an_action_opens_its_screen() -> None:
    async with driven(FakeSession(eventful())) as (app, pilot):
        await pilot.press("3", "enter")
        await until(pilot, lambda: isinstance(app.screen, IncidentPage))
        await pilot.press("8")
        await until(pilot, lambda: app.current_mode == "log")


async def test_the_figures_are_folded_and_the_report_is_copied_as_markdown() -> None:
    async with driven(FakeSession(live_spike(*WAYS))) as (app, pilot):
        await pilot.press("3", "enter")
        await until(pilot, lambda: bool(app.screen.query(Collapsible)))
        parts = list(app.screen.query(Collapsible))
        assert all(part.collapsed for part in parts)
        await pilot.press("d")
        await until(pilot, lambda: not any(part.collapsed for part in parts))
        text, name = shared_text(app)
        assert (name, text[:15]) == ("report", "# Loss spike at")
        assert "1. `clip 0.5`" in text


async def test_narrow_tables_show_outcomes_and_enter_opens_the_rest() -> None:
    async with driven(FakeSession(eventful()), size=(80, 24)) as (app, pilot):
        await pilot.press("5")
        await until(pilot, lambda: "done at 800 (step 814 → step 800)" in text_of(app))
        assert app.screen.query_one(DataTable).virtual_size.width <= 78
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, TextPage))
        await until(pilot, lambda: "by ann@laptop" in text_of(app))
        await pilot.press("escape", "4")
        await until(pilot, lambda: "step-001200-t2" in text_of(app))
        await pilot.press("3")
        await until(pilot, lambda: "rolled back from 814 to 800" in text_of(app))
