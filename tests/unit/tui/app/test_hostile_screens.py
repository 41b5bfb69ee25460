"""No text of a run reaches the terminal as it is, whatever screen shows it."""

from __future__ import annotations

import pytest
from textual._compositor import LayoutUpdate
from textual.pilot import Pilot
from textual.widgets import Static

from fttui.tui.actions import ACTIONS
from fttui.tui.app import FttuiApp
from fttui.tui.screens.text_page import TextPage
from tests.support.hostile import EVIL, faults_of, hostile_events
from tests.support.session_double import FakeSession, Script, eventful
from tests.unit.tui.app.driving import driven


def painted(app: FttuiApp) -> str:
    """What the terminal would get for the whole screen."""
    found = app.screen._compositor.render_update(full=True)
    assert isinstance(found, LayoutUpdate)
    return found.render_segments(app.console)


def hostile() -> FakeSession:
    script: Script = eventful()
    for event in hostile_events():
        script.add(event)
    session = FakeSession(script)
    session.run_id += EVIL
    session.controller = ("other", EVIL)
    session.engine_log_tail = [EVIL, EVIL]
    session.fetch_report = _report  # type: ignore[method-assign]  # a hub that sends anything
    return session


async def _report(report: str) -> str:
    return f"# {EVIL}\n\n- [{EVIL}](http://x{EVIL})\n\n```\n{EVIL}\n```\n"


async def look(app: FttuiApp, pilot: Pilot[int], seen: list[str]) -> None:
    for _ in range(3):
        await pilot.pause()
    app.redraw()
    await pilot.pause()
    seen.append(painted(app))
    assert faults_of(seen[-1], painted=True) == []


@pytest.mark.parametrize("size", [(80, 24), pytest.param((160, 50), marks=pytest.mark.long)])
async def test_no_screen_paints_hostile_text(size: tuple[int, int]) -> None:
    seen: list[str] = []
    async with driven(hostile(), size) as (app, pilot):
        for action in (a for a in ACTIONS if a.id.startswith("go.")):
            app.action_act(action.id)
            await look(app, pilot, seen)
        for key in ("2", "x", "escape", "r", "down", "escape", "colon", "escape", "question_mark"):
            await pilot.press(key)
            await look(app, pilot, seen)
        app.tell(EVIL, title=EVIL)
        await look(app, pilot, seen)
        for page in (TextPage(EVIL, await _report(""), markdown=True), TextPage(EVIL, EVIL)):
            await app.push_screen(page)
            await look(app, pilot, seen)
    assert len(set(seen)) > 10
    assert any("\\x1b]52;c;aGF4" in text for text in seen), "it is shown as an escape"


async def test_a_widget_that_forgets_is_caught_by_the_filter() -> None:
    async with driven(FakeSession(eventful()), (80, 24)) as (app, pilot):
        await app.screen.mount(Static(EVIL + "left\x9b", markup=False))
        await pilot.pause()
        assert "left" in painted(app)
        assert faults_of(painted(app), painted=True) == []
