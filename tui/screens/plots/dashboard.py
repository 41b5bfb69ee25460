"""The dashboard: the main curves, anomalies, interventions and the newest log line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal
from textual.content import Content
from textual.events import Click

from ...actions import bindings
from ...plot.panels import GRAD_NORM, LEARNING_RATE, LOSS, MEMORY, THROUGHPUT, memory_now, on_gpu
from ...text import format as fmt
from ...text.throughput import throughput, throughput_metric
from ...view_model.app_state import AppState
from ...widgets.event_panels import IncidentPanel, InterventionPanel, NewestEvent, StatusLine
from ...widgets.plot import Plot
from ...widgets.start_panel import StartPanel
from ...widgets.status_panels import OutcomePanel
from ...widgets.text_line import DIM, Piece, TextLine, assemble
from .plot_screen import PlotScreen

OPENS: dict[type[TextLine], str] = {
    IncidentPanel: "go.anomalies", InterventionPanel: "go.interventions", StatusLine: "go.log",
    NewestEvent: "go.anomalies",
}  # fmt: skip
"""Actions of panels of the dashboard when they are clicked."""


class DashboardScreen(PlotScreen):
    """The screen with the main plots and the newest events of the run."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings("plots")]
    AUTO_FOCUS = ""

    def compose_body(self) -> ComposeResult:
        """Compose plots and panels, and the single lines that replace panels in small terminals."""
        yield OutcomePanel(id="outcome")
        yield StartPanel(id="start")
        with Horizontal(id="curves"):
            yield Plot(LOSS)
            yield Plot(GRAD_NORM)
        with Horizontal(id="machine"):
            yield Plot(LEARNING_RATE)
            yield Plot(MEMORY)
            yield Plot(THROUGHPUT)
        with Horizontal(id="events"):
            yield IncidentPanel(classes="panel")
            yield InterventionPanel(classes="panel")
        yield TextLine(id="strip")
        yield NewestEvent(id="newest")
        yield StatusLine(id="log-tail")

    def numbered(self) -> Mapping[str, str]:
        """Return the panels that have a screen of their own."""
        return {kind.__name__: OPENS[kind] for kind in (IncidentPanel, InterventionPanel)}

    def on_click(self, event: Click) -> None:
        """Open the screen of the panel that was clicked."""
        for kind, action in OPENS.items():
            if isinstance(event.widget, kind):
                self.fttui.action_act(action)

    def shows_outcomes(self) -> bool:
        """Whether the interventions panel, or the line that replaces it, is visible."""
        shown = (self.query_one(InterventionPanel), self.query_one(NewestEvent))
        return any(bool(widget.region) for widget in shown)

    def show_body(self, state: AppState, now: float) -> None:
        """Draw the panels and the plots in view."""
        self.set_class(state.starting and not state.fault, "-starting")
        self.query_one(OutcomePanel).show(state)
        self.query_one(StartPanel).show(state, now)
        for plot in self.plots():
            plot.offer(state)
        self.query_one(IncidentPanel).show(state)
        self.query_one(InterventionPanel).show(state)
        self.query_one(NewestEvent).show(state, now)
        self.query_one(StatusLine).show(state, now)
        self.query_one("#strip", TextLine).put(_strip(state))


def _strip(state: AppState) -> Content:
    """Return learning rate, memory, throughput and step time as one line; empty before step 1."""
    run = state.run
    if run.last is None:
        return Content("")
    pieces: list[Piece] = [("lr ", DIM), fmt.learning_rate(run.last.lr)]
    if run.last.lr_scale != 1:
        pieces.append(f" (×{fmt.factor(run.last.lr_scale)})")
    memory = memory_now(run)
    if memory is not None:
        used, total = memory
        name = "VRAM" if on_gpu(run) else "memory"
        pieces += [(f" · {name} ", DIM), fmt.size_of(used, total) if total else fmt.size(used)]
    metric = throughput_metric(run.last)
    pieces += [(" · ", DIM), throughput(metric, getattr(run.last, metric))]
    pieces += [(" · step ", DIM), fmt.duration(run.last.step_s)]
    return assemble(*pieces)
