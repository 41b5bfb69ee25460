"""What all full screens share: header, body, footer, and the too-small page over everything."""

from __future__ import annotations

from contextlib import suppress
from typing import cast

from textual.app import ComposeResult
from textual.containers import Container
from textual.css.query import NoMatches
from textual.screen import Screen

from ..app_base import AppBase
from ..view_model.app_state import AppState
from ..widgets.footer import ActionFooter
from ..widgets.header import RunHeader
from ..widgets.status_panels import MIN_HEIGHT, MIN_WIDTH, TooSmall


class RunScreen(Screen[None]):
    """A screen about the run; the app calls `show` on the visible one only."""

    HORIZONTAL_BREAKPOINTS = [  # noqa: RUF012 - Textual's own declaration is no ClassVar
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

    def __init__(self) -> None:
        super().__init__()
        # Set before anything is mounted: setting them later styles every widget once more.
        width, height = self.app.size
        for room, least in (
            (width, self.HORIZONTAL_BREAKPOINTS),
            (height, self.VERTICAL_BREAKPOINTS),
        ):
            self.add_class([name for size, name in least if room >= size][-1])

    @property
    def fttui(self) -> AppBase:
        """The app, typed."""
        return cast(AppBase, self.app)

    def compose(self) -> ComposeResult:
        """Header, body, footer."""
        yield RunHeader(id="header")
        with Container(id="body"):
            yield from self.compose_body()
        yield ActionFooter(id="footer")
        yield TooSmall()

    def compose_body(self) -> ComposeResult:
        """The screen's own widgets."""
        yield from ()

    def show(self, state: AppState, now: float) -> None:
        """Draw the state as of `now` (Unix seconds)."""
        with suppress(NoMatches):  # the screen is being taken down
            self._show(state, now)

    def _show(self, state: AppState, now: float) -> None:
        self.set_class(self.fttui.ascii_only, "ascii")
        width, height = self.app.size
        self.query_one(TooSmall).show(state, width, height)
        self.query_one(RunHeader).show(state, now)
        count = self.fttui.count if self.fttui.counting else None
        self.query_one(ActionFooter).show(state, self.fttui.actions, count)
        self.show_body(state, now)

    def show_body(self, state: AppState, now: float) -> None:
        """Draw the screen's own widgets."""

    def shows_outcomes(self) -> bool:
        """What becomes of a command can be seen here."""
        return False

    def on_screen_resume(self) -> None:
        """Back in view: catch up with what happened meanwhile."""
        self.call_after_refresh(self.fttui.redraw)

    def on_resize(self) -> None:
        """Lines are laid out for a width."""
        self.call_after_refresh(self.fttui.redraw)
