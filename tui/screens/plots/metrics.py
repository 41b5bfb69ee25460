"""The metrics screen: a small plot of every metric of the run."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widget import Widget

from ...actions import bindings, keyed
from ...plot.panels import chosen_metrics, metrics_of, panel_for
from ...view_model.app_state import AppState
from ...widgets.plot import Plot
from ...widgets.text_line import DIM, TextLine, assemble
from .plot_screen import PlotScreen

SCROLLS: dict[str, Callable[[Widget], None]] = {
    "pageup": lambda grid: grid.scroll_page_up(),
    "pagedown": lambda grid: grid.scroll_page_down(),
    "home": lambda grid: grid.scroll_home(),
    "end": lambda grid: grid.scroll_end(),
}
"""Keys that scroll the grid, as everywhere else."""


class MetricsScreen(PlotScreen):
    """A grid of plots that grows as metrics appear."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *bindings("plots"),
        *(Binding(key, f"scroll_plots('{key}')", show=False) for key in SCROLLS),
    ]
    AUTO_FOCUS = ""

    def action_scroll_plots(self, key: str) -> None:
        """Scroll the grid, whether a plot is focused or not."""
        SCROLLS[key](self.query_one("#grid"))

    def __init__(self) -> None:
        super().__init__()
        self._shown: list[str] = []

    def compose_body(self) -> ComposeResult:
        """Compose the grid and the note on the filter."""
        yield VerticalScroll(id="grid", can_focus=False)
        yield TextLine(id="hint")

    def show_body(self, state: AppState, now: float) -> None:
        """Draw the plots in view; add or remove plots as the metrics or the filter change."""
        every = metrics_of(state.run)
        wanted = chosen_metrics(every, state.plot.only)
        note = self.query_one("#hint", TextLine)
        note.display = bool(state.plot.only)
        keys = keyed("{list.filter} change", state)
        found = f"{len(wanted)} of {len(every)} match “{state.plot.only}”   {keys}"
        note.put(assemble((found, DIM)))
        if wanted == self._shown:
            for plot in self.plots():
                plot.offer(state)
            return
        grid = self.query_one("#grid")
        if self._shown == wanted[: len(self._shown)]:
            grid.mount(*(Plot(panel_for(name)) for name in wanted[len(self._shown) :]))
        else:
            grid.query(Plot).remove()
            grid.mount(*(Plot(panel_for(name)) for name in wanted))
        self._shown = wanted
        self.call_after_refresh(self.fttui.redraw)
