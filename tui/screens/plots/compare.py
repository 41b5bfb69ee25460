"""The compare screen: a list of runs, best first, their curves in one plot per metric."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import DataTable, Input

from ...actions import bindings, keyed
from ...plot.compared_panels import GREY, compared, look_of
from ...plot.panels import metrics_of
from ...text import format as fmt
from ...text.format import clip_to, plural
from ...view_model.app_state import AppState
from ...view_model.config_view import differences
from ...view_model.history.ranking import MOST_RUNS, RankedRun, RunPicks, ranked_by
from ...widgets.plot import Plot
from ...widgets.table import Layout, TableRow, cell, fill
from ...widgets.text_line import BOLD, DIM, WATCH, Piece, TextLine, assemble, lines
from ..text_page import TextPage
from .plot_screen import PlotScreen

FIRST = ("loss", "eval.loss", "grad_norm", "lr")
MOST_DIFFERENCES = 40
_FRAME = 4
"""Cells of the list's width that are its border and its scroll bar."""


class RunLegend(DataTable[Content], inherit_bindings=False):
    """The list of compared runs; left and right stay with the cursor of the plots."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "cursor_up", show=False),
        Binding("down", "cursor_down", show=False),
        Binding("pageup", "page_up", show=False),
        Binding("pagedown", "page_down", show=False),
        Binding("home", "scroll_top", show=False),
        Binding("end", "scroll_bottom", show=False),
        Binding("enter", "select_cursor", show=False),
    ]


class CompareScreen(PlotScreen):
    """A list of runs, a plot per metric that all of them have, and how the chosen one differs."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *bindings("plots"),
        *(binding for binding in bindings("runs") if getattr(binding, "id", "") == "runs.mark"),
    ]
    AUTO_FOCUS = "RunLegend"

    def __init__(self) -> None:
        super().__init__()
        self._shown: list[str] = []
        self._rows: list[str] = []
        self._listed: tuple[object, ...] = ()
        self._placed_at = 0
        """The row that the cursor of the list was on when it was filled or moved last."""

    def compose_body(self) -> ComposeResult:
        """Compose list, filter, grid and differences."""
        yield TextLine(id="legend")
        table = RunLegend(id="runs", cursor_type="row")
        table.border_title = "runs, best first"
        table.border_subtitle = "⏎ differences"
        yield table
        yield Input(placeholder="filter: words of a run or its settings", id="filter", compact=True)
        yield VerticalScroll(id="grid", can_focus=False)
        with VerticalScroll(id="differences", classes="panel", can_focus=False):
            yield TextLine(id="rows")

    def show_body(self, state: AppState, now: float) -> None:
        """Draw the curves of this run and the marked runs, and list how they differ."""
        note = self.query_one("#legend", TextLine)
        words = _note(state)
        note.display = bool(words)
        note.put(words)
        self._list(state)
        differing = self.query_one("#differences")
        differing.border_title = "configuration differences"
        differing.display = bool(state.others) and not self.has_class("-short")
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

    def _list(self, state: AppState) -> None:
        """Fill the list, if it has changed; the cursor stays on its run."""
        table = self.query_one(RunLegend)
        table.display = bool(state.others)
        shown = [one for one in state.compared if not _filtered_out(one, state.plot.picks)]
        rows = list(_rows(state, shown))
        key = (table.container_size.width, [row.text for row in rows],
               state.plot.picks)  # fmt: skip
        if key == self._listed:
            return
        self._listed = key
        fill(table, _layout(state, table.container_size.width - _FRAME), rows)
        self._rows = [one.id for one in shown]
        current = state.plot.picks.current
        self._placed_at = self._rows.index(current) if current in self._rows else 0
        table.move_cursor(row=self._placed_at, animate=False)

    def under_cursor(self) -> str | None:
        """Return the id of the run under the cursor of the list; None if the list is empty."""
        at = self.query_one(RunLegend).cursor_row
        return self._rows[at] if 0 <= at < len(self._rows) else None

    @on(DataTable.RowHighlighted)
    def choose_run(self, event: DataTable.RowHighlighted) -> None:
        """Draw the run that the cursor moved to over all others.

        Filling the list places the cursor, too, which chooses nothing.
        """
        run_id, view = self.under_cursor(), self.fttui.state.plot
        if event.cursor_row == self._placed_at or str(event.row_key.value) != run_id:
            return
        self._placed_at = event.cursor_row
        if run_id != view.picks.current:
            self.fttui.look(replace(view, picks=replace(view.picks, current=run_id)))

    @on(DataTable.RowSelected)
    def show_differences(self, event: DataTable.RowSelected) -> None:
        """Show all keys in which a run differs from this one."""
        run_id = str(event.row_key.value)
        text = _differences_of(self.fttui.state, run_id, self.app.size.width, most=None)
        self.fttui.push_screen(TextPage("configuration differences", lines(*text)))

    def pick(self) -> None:
        """Show the run under the cursor in colour, not at all, or in grey, in turns."""
        run_id, view = self.under_cursor(), self.fttui.state.plot
        found = next((one for one in self.fttui.state.compared if one.id == run_id), None)
        if found is not None:
            picks = view.picks.toggled(found.id, coloured=found.coloured)
            self.fttui.look(replace(view, picks=picks))

    def open_filter(self) -> None:
        """Show the filter and focus it."""
        field = self.query_one("#filter", Input)
        field.add_class("-open")
        field.focus()

    def close_filter(self) -> bool:
        """Clear and hide the filter; return whether one was open or in force."""
        field = self.query_one("#filter", Input)
        had = bool(self.fttui.state.plot.picks.words) or field.has_class("-open")
        field.value = ""
        self.keep()
        return had

    @on(Input.Changed, "#filter")
    def narrow(self, event: Input.Changed) -> None:
        """Draw only the runs that contain every word of the filter."""
        view = self.fttui.state.plot
        self.fttui.look(replace(view, picks=replace(view.picks, words=event.value.strip())))

    @on(Input.Submitted, "#filter")
    def keep(self) -> None:
        """Hide the input of the filter, keep the filter, and return the focus to the list."""
        self.query_one("#filter", Input).remove_class("-open")
        self.query_one(RunLegend).focus()


def _filtered_out(one: RankedRun, picks: RunPicks) -> bool:
    return any(word not in one.text for word in picks.words.lower().split())


def _layout(state: AppState, room: int) -> Layout:
    by = ranked_by([one.run for one in state.compared])
    names = ("", "run", "best eval" if by.startswith("eval") else "loss", "step", "settings")
    return Layout(tuple(enumerate(names)), flexible="settings", room=max(0, room))


def _rows(state: AppState, shown: list[RankedRun]) -> Iterator[TableRow]:
    for one in shown:
        look = look_of(state, one)
        sign = cell(one.sign, f"bold $plot-{look}") if look != GREY else cell("·", DIM)
        name = f"▸ {one.id}" if one.own else f"  {one.id}"
        yield TableRow(
            one.id,
            (
                cell("–", DIM) if one.hidden else sign,
                cell(name, DIM if one.hidden else ""),
                cell(f"{fmt.number(one.value):>8}"),
                cell(f"{one.run.step:>8,}"),
                cell(one.settings, DIM),
            ),
        )


def _metrics(state: AppState) -> list[str]:
    """Return the metrics that all runs have, the main ones first."""
    names = metrics_of(state.run)
    for other in state.others:
        theirs = set(metrics_of(other.run))
        names = [name for name in names if name in theirs]
    first = [name for name in FIRST if name in names]
    return first + [name for name in names if name not in first]


def _note(state: AppState) -> Content:
    """Return what the comparison lacks; without other runs, how to choose some."""
    if not state.others:
        hint = (
            "no runs to compare: on the runs screen ({go.runs}) mark runs with {runs.mark}, then "
        )
        hint += "press {runs.compare}"
        return assemble((keyed(hint, state), DIM))
    pieces: list[Piece] = []
    if state.reading_runs:
        pieces.append((f"reading {plural(state.reading_runs, 'more run')} …   ", DIM))
    if state.left_out:
        limit = f"at most {MOST_RUNS} runs, all on this machine"
        left_out = f"△ {plural(state.left_out, 'marked run')} left out ({limit})   "
        pieces.append((left_out, WATCH))
    if words := state.plot.picks.words:
        matching = sum(not _filtered_out(one, state.plot.picks) for one in state.compared)
        found = f"{matching} of {len(state.compared)} match “{words}”   "
        pieces.append((found + keyed("{list.filter} change   {app.back} clear", state), DIM))
    return assemble(*pieces)


def _differences(state: AppState, width: int) -> Content:
    """Return how the run under the cursor differs from this one; without one, every run."""
    current = state.plot.picks.current
    chosen = [other for other in state.others if other.id == current]
    rows = [
        row
        for other in chosen or state.others
        for row in _differences_of(state, other.id, width, MOST_DIFFERENCES)
    ]
    return lines(*rows) if rows else Content("")


def _differences_of(
    state: AppState, run_id: str, width: int, most: int | None
) -> Iterator[Content]:
    other = next((other for other in state.others if other.id == run_id), None)
    if other is None:
        yield assemble((f"{run_id} is the run that the others are compared with", DIM))
        return
    yield assemble((other.id, BOLD))
    found = differences(state.config, other.config)
    if not found:
        yield assemble(("  no known differences", DIM))
    each = max(10, (width - 44) // 2)
    for key, ours, theirs in found[:most]:
        shown = f"{clip_to(ours, each)} → {clip_to(theirs, each)}"
        yield assemble((f"  {key:<30} ", DIM), shown)
    if most is not None and (more := found[most:]):
        yield assemble((f"  and {plural(len(more), 'more key')}", DIM))
