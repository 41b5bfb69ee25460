"""The base of all full screens: header, body, footer, and the notice for a too small terminal."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import ClassVar, cast

from textual.app import ComposeResult
from textual.containers import Container
from textual.css.query import NoMatches
from textual.screen import Screen

from ..actions import key_of
from ..app_base import AppBase
from ..view_model.app_state import AppState
from ..widgets.footer import ActionFooter
from ..widgets.header import RunHeader
from ..widgets.proposal_line import ProposalLine
from ..widgets.status_panels import MIN_HEIGHT, MIN_WIDTH, TooSmall
from ..widgets.text_line import DIM, assemble


class RunScreen(Screen[None]):
    """A screen that shows the run; the app calls `show` on the visible one only."""

    HORIZONTAL_BREAKPOINTS = [  # noqa: RUF012 - Textual's own declaration is not a ClassVar
        (0, "-tiny"),
        (MIN_WIDTH, "-narrow"),
        (100, "-normal"),
        (170, "-wide"),
    ]
    VERTICAL_BREAKPOINTS = [  # noqa: RUF012 - as above
        (0, "-flat"),
        (MIN_HEIGHT, "-short"),
        (30, "-tall"),
    ]
    MODE: ClassVar[str] = ""
    """Name under which the footer finds the keys of the screen; empty for the app's mode."""

    def __init__(self) -> None:
        super().__init__()
        self._numbers: dict[str, str] = {}
        """Keys in the titles of panels, by selector; keys do not change while the app runs."""
        # Set before any widget is mounted, because a later change restyles every widget.
        width, height = self.app.size
        for room, least in (
            (width, self.HORIZONTAL_BREAKPOINTS),
            (height, self.VERTICAL_BREAKPOINTS),
        ):
            self.add_class([name for size, name in least if room >= size][-1])

    @property
    def fttui(self) -> AppBase:
        """The app, typed as the part of it that screens use."""
        return cast(AppBase, self.app)

    def compose(self) -> ComposeResult:
        """Compose header, body and footer."""
        yield RunHeader(id="header")
        yield ProposalLine(id="proposal")
        with Container(id="body"):
            yield from self.compose_body()
        yield ActionFooter(id="footer")
        yield TooSmall()

    def compose_body(self) -> ComposeResult:
        """Compose the screen's own widgets."""
        yield from ()

    def show(self, state: AppState, now: float) -> None:
        """Draw the state as of `now` (Unix seconds)."""
        with suppress(NoMatches):  # the screen is being removed
            self._show(state, now)

    def _show(self, state: AppState, now: float) -> None:
        self.set_class(self.fttui.ascii_only, "ascii")
        width, height = self.app.size
        self.query_one(TooSmall).show(state, width, height)
        self.query_one(RunHeader).show(state, now)
        self.query_one(ProposalLine).show(state, now)
        count = self.fttui.count if self.fttui.counting else None
        self.query_one(ActionFooter).show(
            state, self.fttui.actions, count, mode=self.MODE or self.app.current_mode
        )
        self.show_body(state, now)
        self._number(state)

    def _number(self, state: AppState) -> None:
        """Write before the title of a panel the key that opens its screen."""
        for selector, action_id in self.numbered().items():
            key = key_of(action_id, state)
            if self._numbers.get(selector) != key:
                self._numbers[selector] = key
                for widget in self.query(selector):
                    widget.border_title = assemble((f"[{key}] ", DIM), widget.border_title or "")

    def numbered(self) -> Mapping[str, str]:
        """Return the panels whose titles begin with a key: selector → id of the key's action."""
        return {}

    def show_body(self, state: AppState, now: float) -> None:
        """Draw the screen's own widgets."""

    def shows_outcomes(self) -> bool:
        """Whether the screen shows the outcome of commands, so that no notification is needed."""
        return False

    def on_screen_resume(self) -> None:
        """Redraw when the screen comes back into view."""
        self.call_after_refresh(self.fttui.redraw)

    def on_resize(self) -> None:
        """Redraw, because text is laid out for the width of the terminal."""
        self.call_after_refresh(self.fttui.redraw)
