"""What all full screens share: header, body, footer, and the too-small page over everything."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, ClassVar, cast

from textual.app import ComposeResult
from textual.containers import Container
from textual.css.query import NoMatches
from textual.screen import Screen

from ..view_model.app_state import AppState
from ..widgets.footer import ActionFooter
from ..widgets.header import RunHeader
from ..widgets.plot import Plot
from ..widgets.status_panels import MIN_HEIGHT, MIN_WIDTH, TooSmall

if TYPE_CHECKING:
    from ..app import FttuiApp


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
    def fttui(self) -> FttuiApp:
        """The app, typed."""
        return cast("FttuiApp", self.app)

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
        self.query_one(TooSmall).show(width, height)
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


class PlotScreen(RunScreen):
    """A screen of plots that share window, cursor and scale, and so their looks.

    | Component class | What |
    | :- | :- |
    | `plot--raw`, `--ema`, `--live`, `--eval`, `--clip`, `--old`, `--band`, `--limit` | curves |
    | `plot--run1` … `plot--run4` | curves of compared runs |
    | `plot--axis`, `--mark`, `--alarm`, `--cursor` | around and over them |
    """

    # Held here, not by each plot: looking up sixteen styles is most of what a plot would cost.
    COMPONENT_CLASSES: ClassVar[set[str]] = {f"plot--{look}" for look in Plot.LOOKS}

    def plots(self) -> list[Plot]:
        """The plots in reading order."""
        return list(self.query(Plot))

    @property
    def canvas_columns(self) -> int:
        """Columns of the focused plot, for cursor steps."""
        return self.chosen_plot().columns if self.plots() else 1

    def chosen_plot(self) -> Plot:
        """The focused plot, else the first."""
        return self.focused if isinstance(self.focused, Plot) else self.plots()[0]

    def on_plot_pointed(self, message: Plot.Pointed) -> None:
        """A click on a plot puts the cursor there on all of them."""
        state = self.fttui.state
        self.fttui.look(state.plot.at(message.step, state.run.step))

    def choose(self, offset: int) -> None:
        """Focus the next or previous plot."""
        shown = [plot for plot in self.plots() if plot.display]
        if not shown:
            return
        if self.has_class("-maximised"):
            shown = self.plots()
        focused = self.focused
        at = shown.index(focused) if isinstance(focused, Plot) and focused in shown else -offset
        chosen = shown[(at + offset) % len(shown)]
        if self.has_class("-maximised"):
            self.maximise_plot(chosen)
        chosen.focus()

    def toggle_maximised(self) -> None:
        """The focused plot alone, or all again."""
        if self.has_class("-maximised"):
            self.remove_class("-maximised")
            for plot in self.plots():
                plot.remove_class("-alone")
                if plot.parent is not None:
                    plot.parent.remove_class("-aside")
        elif self.plots():
            self.maximise_plot(self.chosen_plot())
        self.call_after_refresh(self.fttui.redraw)

    def maximise_plot(self, chosen: Plot) -> None:
        """Show one plot alone."""
        self.add_class("-maximised")
        for plot in self.plots():
            plot.set_class(plot is chosen, "-alone")
            if plot.parent is not None:
                plot.parent.set_class(plot.parent is not chosen.parent, "-aside")
        chosen.focus()
