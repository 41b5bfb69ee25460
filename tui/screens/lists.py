"""Screens that are a filterable table: anomalies, checkpoints, interventions, samples, log."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.content import Content
from textual.widgets import DataTable, Input

from ..state import format as fmt
from ..state.app import AppState
from ..state.glyphs import SEVERITY_COLOUR, SEVERITY_SHAPE
from ..state.interventions import Phase
from ..widgets.text import ACCENT, ALARM, DIM, WATCH, Line, Piece, assemble
from .base import RunScreen


@dataclass(frozen=True)
class Row:
    """A line of a table: what identifies it and its cells."""

    key: str
    cells: tuple[Content, ...]

    @property
    def text(self) -> str:
        """What a filter looks into."""
        return " ".join(cell.plain for cell in self.cells).lower()


def cell(text: str, style: str = "") -> Content:
    """A cell, coloured."""
    piece: Piece = (text, style) if style else text
    return assemble(piece)


class ListScreen(RunScreen):
    """A table over all rows, newest first; `/` filters, enter acts on a row."""

    COLUMNS: ClassVar[tuple[str, ...]] = ()
    NAME: ClassVar[str] = ""
    EMPTY: ClassVar[str] = ""
    HINT: ClassVar[str] = "/ filter   esc back"

    def __init__(self) -> None:
        super().__init__()
        self._filter = ""
        self._rows: list[Row] | None = None

    def compose_body(self) -> ComposeResult:
        """Table, hint, filter."""
        table: DataTable[Content] = DataTable(cursor_type="row", zebra_stripes=False)
        table.border_title = self.NAME
        yield table
        yield Line(id="hint")
        yield Input(placeholder="filter…", id="filter", compact=True)

    def rows(self, state: AppState, now: float) -> list[Row]:
        """All rows, newest first."""
        return []

    def chosen(self, key: str) -> None:
        """Enter on a row."""

    def show_body(self, state: AppState, now: float) -> None:
        """Bring the table up to date; the cursor stays on its row."""
        everything = self.rows(state, now)
        rows = [row for row in everything if self._filter in row.text]
        hint = self.HINT if everything else self.EMPTY
        if self._filter:
            hint = f"{len(rows)} of {len(everything)} with “{self._filter}”   / change   esc clear"
        self.query_one("#hint", Line).put(Content(hint))
        known = self._rows
        if known is not None and _same(rows, known):
            return
        table = self.query_one(DataTable)
        place = table.cursor_row
        held = known[place].key if known and 0 <= place < len(known) else ""
        fill(table, self.COLUMNS, rows)
        at = next((i for i, row in enumerate(rows) if row.key == held), 0)
        table.move_cursor(row=at if place else 0, animate=False)
        self._rows = rows

    def open_filter(self) -> None:
        """Start typing a filter."""
        field = self.query_one("#filter", Input)
        field.add_class("-open")
        field.focus()

    def close_filter(self) -> bool:
        """Drop the filter; False when there was none."""
        field = self.query_one("#filter", Input)
        had = bool(self._filter) or field.has_class("-open")
        field.value = ""
        field.remove_class("-open")
        self.query_one(DataTable).focus()
        return had

    @on(Input.Changed, "#filter")
    def narrow(self, event: Input.Changed) -> None:
        """Show only what has the text."""
        self._filter = event.value.strip().lower()
        self.fttui.redraw()

    @on(Input.Submitted, "#filter")
    def keep(self) -> None:
        """Back to the table, filtered."""
        self.query_one("#filter", Input).remove_class("-open")
        self.query_one(DataTable).focus()

    @on(DataTable.RowSelected)
    def choose(self, event: DataTable.RowSelected) -> None:
        """Enter on a row."""
        if event.row_key.value is not None:
            self.chosen(event.row_key.value)


def fill(table: DataTable[Content], names: Sequence[str], rows: Sequence[Row]) -> None:
    """Put rows into a table, each column as wide as its widest cell."""
    table.clear(columns=True)
    for at, name in enumerate(names):
        width = max([len(name), *(row.cells[at].cell_length for row in rows)])
        table.add_column(name, width=width)
    for row in rows:
        table.add_row(*row.cells, key=row.key)


def _same(rows: Sequence[Row], others: Sequence[Row]) -> bool:
    if len(rows) != len(others):
        return False
    return all(
        a.key == b.key and all(x.is_same(y) for x, y in zip(a.cells, b.cells, strict=True))
        for a, b in zip(rows, others, strict=True)
    )


class Anomalies(ListScreen):
    """Anomalies; enter opens the report."""

    COLUMNS = ("", "step", "what", "verdict", "good before")
    NAME = "anomalies"
    EMPTY = "No anomaly so far. The guard looks at loss and gradients before every update."
    HINT = "enter report   R recover   / filter   esc back"

    def rows(self, state: AppState, now: float) -> list[Row]:
        """One per anomaly."""
        found = []
        for anomaly in reversed(state.run.anomalies):
            event = anomaly.event
            colour = SEVERITY_COLOUR.get(event.severity, DIM)
            cells = (
                cell(SEVERITY_SHAPE.get(event.severity, "·"), colour),
                cell(f"{anomaly.step:>7,}"),
                cell(event.headline),
                cell(anomaly.verdict or "open", DIM if anomaly.verdict else colour),
                cell(event.checkpoint or "–", DIM),
            )
            found.append(Row(event.id, cells))
        return found

    def chosen(self, key: str) -> None:
        """Open its report."""
        self.fttui.open_report(key)


class Checkpoints(ListScreen):
    """Checkpoints; enter rolls back to one."""

    COLUMNS = ("step", "age", "loss", "size", "timeline", "", "name", "note")
    NAME = "checkpoints"
    EMPTY = "No checkpoint yet; s writes one."
    HINT = "enter roll back to it   s save   S save pinned   / filter   esc back"

    def rows(self, state: AppState, now: float) -> list[Row]:
        """One per checkpoint on disk."""
        here = now + state.link.clock_offset_s
        return [
            Row(
                c.name,
                (
                    cell(f"{c.step:>7,}"),
                    cell(f"{fmt.age(here - c.time):>5}", DIM),
                    cell(f"{fmt.number(c.loss):>7}"),
                    cell(f"{fmt.size(c.size_bytes):>9}", DIM),
                    cell(f"{c.timeline}", DIM),
                    _standing(c.good, c.pinned),
                    cell(c.name),
                    cell(c.note, DIM),
                ),
            )
            for c in reversed(state.run.checkpoints)
        ]

    def chosen(self, key: str) -> None:
        """Ask to roll back to it."""
        self.fttui.ask_rollback(key)


def _standing(good: bool, pinned: bool) -> Content:
    pieces: list[Piece] = [("good", ACCENT) if good else ("△ doubtful", WATCH)]
    if pinned:
        pieces.append(" pinned")
    return assemble(*pieces)


_PHASE_STYLE = {Phase.APPLIED: ACCENT, Phase.FAILED: ALARM, Phase.REJECTED: ALARM, Phase.SENT: DIM}


class InterventionList(ListScreen):
    """Who changed what, when, why, and its effect."""

    COLUMNS = ("step", "who", "command", "outcome", "took", "why")
    NAME = "interventions"
    EMPTY = "No intervention so far; l changes the learning rate, c the clip."

    def shows_outcomes(self) -> bool:
        """It is the list of them."""
        return True

    def rows(self, state: AppState, now: float) -> list[Row]:
        """One per command."""
        return [
            Row(
                item.id,
                (
                    cell("–" if item.step is None else f"{item.step:>7,}"),
                    cell(item.issuer, DIM),
                    cell(item.text),
                    cell(item.outcome(), _PHASE_STYLE.get(item.phase, "")),
                    cell(fmt.duration(item.seconds) if item.seconds else "", DIM),
                    cell(state.run.interventions.why(item), DIM),
                ),
            )
            for item in reversed(state.run.interventions.items)
        ]


class Samples(ListScreen):
    """Texts the adapter wrote; enter shows one in full."""

    COLUMNS = ("step", "prompt", "text")
    NAME = "samples"
    EMPTY = "No sample so far; g generates one from the current adapter."
    HINT = "enter read   g generate   / filter   esc back"

    def rows(self, state: AppState, now: float) -> list[Row]:
        """One per sample."""
        return [
            Row(
                str(index),
                (
                    cell(f"{s.step:>7,}"),
                    cell(fmt.clip_to(_flat(s.prompt), 40), DIM),
                    cell(_flat(s.text)),
                ),
            )
            for index, s in reversed(list(enumerate(state.run.samples)))
        ]

    def chosen(self, key: str) -> None:
        """Show it in full."""
        self.fttui.open_sample(int(key))


class Log(ListScreen):
    """The run's log."""

    COLUMNS = ("time", "level", "rank", "text")
    NAME = "log"
    EMPTY = "Nothing was logged yet."

    def rows(self, state: AppState, now: float) -> list[Row]:
        """One per line."""
        colours = {"error": ALARM, "warning": WATCH, "debug": DIM}
        return [
            Row(
                f"{line.time}-{index}",
                (
                    cell(time.strftime("%H:%M:%S", time.localtime(line.time)), DIM),
                    cell(line.level, colours.get(line.level, DIM)),
                    cell(str(line.rank), DIM),
                    cell(_flat(line.text), colours.get(line.level, "")),
                ),
            )
            for index, line in reversed(list(enumerate(state.run.log)))
        ]


def _flat(text: str) -> str:
    return " ".join(text.split())
