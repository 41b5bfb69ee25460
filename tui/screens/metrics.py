"""Every metric of the run as a small plot."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll

from ..actions import bindings
from ..state.app import AppState
from ..state.panels import metrics_of, panel_for
from ..widgets.plot import Plot
from .base import PlotScreen


class Metrics(PlotScreen):
    """A grid that grows as metrics appear."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings("plots")]
    AUTO_FOCUS = ""

    def __init__(self) -> None:
        super().__init__()
        self._shown: set[str] = set()

    def compose_body(self) -> ComposeResult:
        """The grid."""
        yield VerticalScroll(id="grid", can_focus=False)

    def show_body(self, state: AppState, now: float) -> None:
        """Draw the plots in view."""
        fresh = [name for name in metrics_of(state.run) if name not in self._shown]
        if fresh:
            self._shown.update(fresh)
            self.query_one("#grid").mount(*(Plot(panel_for(name)) for name in fresh))
            self.call_after_refresh(self.fttui.redraw)
            return
        for plot in self.plots():
            plot.offer(state)
