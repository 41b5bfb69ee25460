"""The mouse in every screen: drag and wheel on plots, events on their axis, rows, ranks, keys."""

from __future__ import annotations

import pytest
from textual import events
from textual.geometry import Offset
from textual.pilot import Pilot
from textual.widget import Widget
from textual.widgets import DataTable

from fttui.tui.plot.frame import GUTTER
from fttui.tui.screens.modals.confirm import ConfirmScreen
from fttui.tui.screens.modals.help import HelpScreen
from fttui.tui.screens.plots.plot_screen import PlotScreen
from fttui.tui.screens.tables.table_screen import TableScreen
from fttui.tui.screens.text_page import TextPage
from fttui.tui.widgets.plot import Plot
from tests.support.session_double import FakeSession, Script, eventful, live_spike
from tests.unit.tui.screens.test_ranks import many_ranks

from .driving import driven, text_of, until


def wheel(widget: Widget, kind: type[events.MouseScrollDown] | type[events.MouseScrollUp],
          x: int = 20, y: int = 4, *, ctrl: bool = False) -> None:  # fmt: skip
    """Turn the wheel over a widget; the event goes through the screen, as that of a terminal."""
    at = Offset(x, y) + widget.region.offset
    event = kind(widget, at.x, at.y, 0, 1 if kind is events.MouseScrollDown else -1, 0,
                 False, False, ctrl, at.x, at.y)  # fmt: skip
    widget.screen._forward_event(event)


async def clicked_key(pilot: Pilot[int], label: str) -> None:
    """Click a key of the footer."""
    rows = text_of(pilot.app).split("\n")  # type: ignore[arg-type]
    await pilot.click(offset=(rows[-1].index(label) + 1, len(rows) - 1))


@pytest.mark.parametrize(
    "mode", ["dashboard", *(pytest.param(m, marks=pytest.mark.long) for m in ("metrics", "system"))]
)
async def test_drag_click_and_wheel_on_a_plot(mode: str) -> None:
    async with driven(FakeSession(eventful())) as (app, pilot):
        app.go(mode)
        await until(pilot, lambda: isinstance(app.screen, PlotScreen))
        await until(pilot, lambda: any(not plot.picture.empty for plot in app.screen.query(Plot)))
        plot = next(plot for plot in app.screen.query(Plot) if not plot.picture.empty)
        newest = app.state.run.step
        wheel(plot, events.MouseScrollUp, ctrl=True)
        await until(pilot, lambda: app.state.plot.span is not None)
        wheel(plot, events.MouseScrollDown, ctrl=True)
        wheel(plot, events.MouseScrollDown, ctrl=True)
        await until(pilot, lambda: app.state.plot.window(newest)[0] == 0)
        await pilot.mouse_down(plot, offset=(GUTTER + 10, 3))
        await pilot.hover(plot, offset=(GUTTER + 25, 3))
        await pilot.mouse_up(plot, offset=(GUTTER + 25, 3))
        await until(pilot, lambda: app.state.plot.window(newest)[0] > 0)
        await pilot.click(plot, offset=(GUTTER + 5, 3))
        await until(pilot, lambda: app.state.plot.cursor is not None)


async def test_an_event_on_the_axis_opens_what_it_is_about() -> None:
    async with driven(FakeSession(live_spike())) as (app, pilot):
        plot = app.screen.query(Plot).first()
        row = next(n for n, line in enumerate(text_of(app).split("\n")) if "└" in line)
        line = text_of(app).split("\n")[row]
        await pilot.click(offset=(line.index("◆"), row))
        await until(pilot, lambda: app.current_mode == "checkpoints")
        app.go("dashboard")
        await until(pilot, lambda: plot.is_on_screen)
        marks = line.index("▲") if "▲" in line else line.index("△")
        await pilot.click(offset=(marks, row))
        await until(pilot, lambda: len(app.screen_stack) > 1)  # the report of the incident


async def test_keys_of_the_footer_are_clicked() -> None:
    async with driven(FakeSession(eventful())) as (app, pilot):
        await clicked_key(pilot, "? help")
        await until(pilot, lambda: isinstance(app.screen, HelpScreen))
        await pilot.press("escape")
        await until(pilot, lambda: len(app.screen_stack) == 1)
        await clicked_key(pilot, "x stop")
        await until(pilot, lambda: isinstance(app.screen, ConfirmScreen))


def long_lists() -> Script:
    """A run with many checkpoints and interventions."""
    script = Script().start().run()
    for _ in range(40):
        script.train(5).checkpoint()
        script.command("clip 0.9", "1", "0.9")
    return script


@pytest.mark.parametrize("mode", ["checkpoints", "interventions", "config"])
@pytest.mark.long
async def test_the_wheel_scrolls_a_list_and_clicks_choose_and_open_rows(mode: str) -> None:
    async with driven(FakeSession(long_lists()), size=(80, 24)) as (app, pilot):
        app.go(mode)
        await until(pilot, lambda: isinstance(app.screen, TableScreen))
        table = app.screen.query_one(DataTable)
        if mode != "config":
            await until(pilot, lambda: table.row_count >= 40)
            wheel(table, events.MouseScrollDown)
            await until(pilot, lambda: table.scroll_offset.y > 0)
            wheel(table, events.MouseScrollUp)
            await until(pilot, lambda: table.scroll_offset.y == 0)


async def test_a_rank_of_many_is_clicked() -> None:
    async with driven(FakeSession(many_ranks())) as (app, pilot):
        await pilot.press("W")
        await until(pilot, lambda: isinstance(app.screen, TableScreen))
        table = app.screen.query_one(DataTable)
        await until(pilot, lambda: table.row_count >= 64)
        assert "37" in text_of(app)
        await pilot.click(table, offset=(6, 6))
        await until(pilot, lambda: table.cursor_row > 0)
        await pilot.click(table, offset=(6, 6))
        await until(pilot, lambda: isinstance(app.screen, TextPage))
        await pilot.press("escape")
        before = table.scroll_offset.y
        await until(pilot, lambda: isinstance(app.screen, TableScreen))
        wheel(table, events.MouseScrollDown, y=8)
        await until(pilot, lambda: table.scroll_offset.y > before)
