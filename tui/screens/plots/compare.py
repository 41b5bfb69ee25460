"""The compare screen: curves of several runs in one plot per metric, and their differing keys."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.content import Content

from ...actions import bindings, keyed
from ...plot.panels import metrics_of
from ...plot.system_panels import COLOURS, SIGNS, compared
from ...text.format import clip_to, plural
from ...view_model.app_state import AppState
from ...view_model.config_view import differences
from ...widgets.plot import Plot
from ...widgets.text_line import BOLD, DIM, WATCH, Piece, TextLine, assemble, lines
from .plot_screen import PlotScreen

FIRST = ("loss", "eval.loss", "grad_norm", "lr")
MOST_DIFFERENCES = 40


class CompareScreen(PlotScreen):
    """A legend, a plot per metric that all runs have, and the configuration keys that differ."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings("plots")]
    AUTO_FOCUS = ""

    def __init__(self) -> None:
        super().__init__()
        self._shown: list[str] = []

    def compose_body(self) -> ComposeResult:
        """Compose legend, grid and differences."""
        yield TextLine(id="legend")
        yield VerticalScroll(id="grid", can_focus=False)
        with VerticalScroll(id="differences", classes="panel", can_focus=False):
            yield TextLine(id="rows")

    def show_body(self, state: AppState, now: float) -> None:
        """Draw the curves of this run and the marked runs, and list how they differ."""
        self.query_one("#legend", TextLine).put(_legend(state))
        differing = self.query_one("#differences")
        differing.border_title = "configuration differences"
        differing.display = bool(state.others)
        self.query_one("#rows", TextLine).put(_differences(state, self.app.size.width))
        wanted = _metrics(state)
        if wanted != self._shown:
            self._shown = wanted
            grid = self.query_one("#grid")
            grid.remove_children()
            grid.mount(*(Plot(compared(name)) for name in wanted))
            self.call_after_refresh(self.fttui.redraw)
            return
        for plot in self.plots():
            plot.offer(state)


def _metrics(state: AppState) -> list[str]:
    """Return the metrics that all runs have, the main ones first."""
    names = metrics_of(state.run)
    for other in state.others:
        theirs = set(metrics_of(other.run))
        names = [name for name in names if name in theirs]
    first = [name for name in FIRST if name in names]
    return first + [name for name in names if name not in first]


def _legend(state: AppState) -> Content:
    if not state.others:
        hint = (
            "no runs to compare: on the runs screen ({go.runs}) mark runs with {runs.mark}, then "
        )
        hint += "press {runs.compare}"
        return assemble((keyed(hint, state), DIM))
    ids = [state.run_id, *(other.id for other in state.others)]
    pieces: list[Piece] = []
    for sign, look, id_ in zip(SIGNS, COLOURS, ids, strict=False):
        pieces += [(f"{sign} ", f"bold $plot-{look}"), f"{id_}   "]
    if state.left_out:
        limit = f"at most {len(SIGNS)} runs, all on this machine"
        left_out = f"△ {plural(state.left_out, 'marked run')} left out ({limit})   "
        pieces.insert(0, (left_out, WATCH))
    return assemble(*pieces)


def _differences(state: AppState, width: int) -> Content:
    rows = []
    for other in state.others:
        rows.append(assemble((other.id, BOLD)))
        found = differences(state.config, other.config)
        if not found:
            rows.append(assemble(("  no known differences", DIM)))
        each = max(10, (width - 44) // 2)
        for key, ours, theirs in found[:MOST_DIFFERENCES]:
            shown = f"{clip_to(ours, each)} → {clip_to(theirs, each)}"
            rows.append(assemble((f"  {key:<30} ", DIM), shown))
        if more := found[MOST_DIFFERENCES:]:
            rows.append(assemble((f"  and {plural(len(more), 'more key')}", DIM)))
    return lines(*rows) if rows else Content("")
