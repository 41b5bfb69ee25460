"""Drives the app against the double and waits on conditions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from textual.pilot import Pilot

from fttui.engine.run.run_dir import RunDirectory
from fttui.tui.app import FttuiApp
from fttui.tui.preferences import Preferences
from tests.support.session_double import FakeSession


@asynccontextmanager
async def driven(
    session: FakeSession,
    size: tuple[int, int] = (120, 40),
    preferences: Preferences | None = None,
    folder: Path | None = None,
) -> AsyncIterator[tuple[FttuiApp, Pilot[int]]]:
    """The app, once it has read the whole script."""
    run = RunDirectory(folder) if folder else None
    clock: Callable[[], float] = lambda: session.script.now + 0.2  # noqa: E731
    app = FttuiApp(session, run=run, preferences=preferences, clock=clock)
    async with app.run_test(size=size) as pilot:
        await until(pilot, lambda: settled(app, session))
        yield app, pilot


def settled(app: FttuiApp, session: FakeSession) -> bool:
    """Everything the script holds has been folded, or listening has ended."""
    if app.state.fault:
        return True
    heard = app.state.run.seq == len(session.script.records)
    return heard and app.state.link.link is session.link and not app._changed


async def until(pilot: Pilot[int], condition: Callable[[], bool]) -> None:
    """Let the app work until a condition holds."""
    for _ in range(400):
        await pilot.pause(0.01)
        if condition():
            await pilot.pause()
            return
    raise AssertionError("the condition never came true")


def text_of(app: FttuiApp) -> str:
    """What is on the screen, as text."""
    strips = app.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in strip) for strip in strips)


def told(app: FttuiApp) -> str:
    """Remarks on the screen."""
    return " ".join(note.message for note in app._notifications)
