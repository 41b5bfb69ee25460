"""Drives the app against the double and waits on conditions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from textual._compositor import Compositor
from textual._context import visible_screen_stack
from textual.pilot import Pilot

from fttui.engine.run.run_dir import RunDirectory
from fttui.tui.app import FttuiApp
from fttui.tui.preferences import Preferences
from tests.support.session_double import FakeSession


@contextmanager
def frames_undrawn() -> Iterator[None]:
    """Compute no frame of a headless app, which drops them; `text_of` draws the one it returns.

    That is a third of the time of a test that presses keys. A whole frame, such as that of a
    screenshot, is computed as ever.
    """
    draw = Compositor.render_update

    def drop(
        self: Compositor, full: bool = False, screen_stack: Any = None, simplify: bool = False
    ) -> Any:
        if full:
            return draw(self, full, screen_stack, simplify)
        visible_screen_stack.set(screen_stack or [])
        self._dirty_regions.clear()
        return None

    with mock.patch.object(Compositor, "render_update", drop):
        yield


@asynccontextmanager
async def driven(
    session: FakeSession,
    size: tuple[int, int] = (120, 40),
    preferences: Preferences | None = None,
    folder: Path | None = None,
) -> AsyncIterator[tuple[FttuiApp, Pilot[int]]]:
    """The app, once it has read the whole script; what it shows last is drawn in any case."""
    run = RunDirectory(folder) if folder else None
    clock: Callable[[], float] = lambda: session.script.now + 0.2  # noqa: E731
    app = FttuiApp(session, run=run, preferences=preferences, clock=clock)
    with frames_undrawn():
        async with app.run_test(size=size) as pilot:
            await until(pilot, lambda: settled(app, session))
            yield app, pilot
            if app.is_running:
                text_of(app)


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
