"""The page of a race: progress and table during the race, the verdict afterwards."""

from __future__ import annotations

import asyncio
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.css.query import NoMatches

from fttui.engine.errors import FttuiError

from ..actions import key_of
from ..connection.race.race_source import LocalRace, RaceSource
from ..dialogs.race_text import page_lines
from ..view_model.app_state import AppState
from ..view_model.race.race_state import RaceState
from ..widgets.text_line import TextLine, lines, plain
from .base import RunScreen
from .modals.confirm import ConfirmScreen

LOOK_S = 1.0
"""Seconds between two looks at the file of the race."""


class RacePage(RunScreen):
    """Follows the newest race of a run; `i` interrupts it."""

    AUTO_FOCUS = "#text"
    MODE = "page"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("i", "interrupt", show=False)]

    def __init__(self, source: RaceSource, *, began: bool = False) -> None:
        """Show the race of a source; `began` says whether the app has just started it."""
        super().__init__()
        self._source = source
        self._race: RaceState | None = None
        self._conducted = began
        self._said: list[str] = []

    def compose_body(self) -> ComposeResult:
        """Compose the text of the page."""
        page = VerticalScroll(id="text", can_focus=True)
        page.border_title = "race"
        with page:
            yield TextLine(id="race")

    def on_mount(self) -> None:
        """Begin to follow the race."""
        self.run_worker(self._look(), group="race", exclusive=True)
        self.set_interval(LOOK_S, self._look)

    async def _look(self) -> None:
        """Read the current state of the race."""
        found = await asyncio.to_thread(self._source.look)
        self._race, self._conducted, self._said = found.race, found.conducted, found.said
        keys = "i: interrupt   esc: back, the race continues" if self._conducted else "esc: back"
        self.query_one("#text").border_subtitle = keys
        self.fttui.redraw()

    def on_unmount(self) -> None:
        """Release the source."""
        self._source.close()

    def text_to_copy(self) -> str:
        """Return the text of the page."""
        return "\n".join(self._lines(self.fttui.state))

    def _lines(self, state: AppState) -> list[str]:
        last = state.run.last
        step_s = None if last is None else last.step_s
        # The key of a run on a remote host only begins races.
        key = key_of("run.race", state) if isinstance(self._source, LocalRace) else ""
        return list(page_lines(self._race, state, self._conducted, step_s, self._said, key=key))

    def show_body(self, state: AppState, now: float) -> None:
        """Draw the current state of the race."""
        try:
            text = self.query_one("#race", TextLine)
        except NoMatches:
            return
        text.put(lines(*(plain(row) for row in self._lines(state))))

    def action_interrupt(self) -> None:
        """Once confirmed, pause the run within the current variant; a resume is possible later."""
        if not self._conducted:
            self.fttui.tell("no race is running", title="race")
            return

        def answer(key: str | None) -> None:
            if key == "y":
                self.run_worker(self._interrupt(), group="interrupt")

        rows = [
            "The run pauses within the variant that is training now.",
            "You can resume the race later, or return the run to its start.",
        ]
        self.fttui.push_screen(
            ConfirmScreen("interrupt the race", rows, [("y", "interrupt")]), answer
        )

    async def _interrupt(self) -> None:
        try:
            await asyncio.to_thread(self._source.interrupt)
        except FttuiError as error:
            self.fttui.tell(str(error), title="race")
            return
        self.fttui.tell(
            "the race is being interrupted; the run pauses", "information", title="race"
        )
