"""Screens that are a filterable table: what happened, what was kept, what was set."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.content import Content
from textual.widgets import DataTable, Input

from ..actions import ACTION_OF, bindings, keyed, label_of, why_not
from ..dialogs.command_cost import given_up
from ..plot.panels import value_at
from ..text import format as fmt
from ..text.glyphs import SEVERITY_COLOUR, SEVERITY_SHAPE
from ..view_model.app_state import AppState
from ..view_model.branches import SMOOTHINGS, smoothed
from ..view_model.interventions import Phase
from ..widgets.text import ACCENT, ALARM, DIM, WATCH, Piece, TextLine, assemble, lines
from .base import RunScreen
from .details import DETAILS

GAP = "   "
"""Between the keys of a hint."""


@dataclass(frozen=True)
class TableRow:
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

    BINDINGS: ClassVar[list[BindingType]] = [*bindings("list")]
    COLUMNS: ClassVar[tuple[str, ...]] = ()
    NAME: ClassVar[str] = ""
    EMPTY: ClassVar[str] = ""
    HINT: ClassVar[str] = "{list.filter} filter   {app.back} back"
    ENTER: ClassVar[str] = ""
    """The action that enter is, where it is one that may not be legal now."""
    DETAIL: ClassVar[str] = ""
    """Of `DETAILS`: what stands beside the list where there is room."""

    def __init__(self) -> None:
        super().__init__()
        self._filter = ""
        self._rows: list[TableRow] | None = None

    def compose_body(self) -> ComposeResult:
        """Table, hint, filter."""
        table: DataTable[Content] = DataTable(cursor_type="row", zebra_stripes=False)
        table.border_title = self.NAME
        yield table
        if self.DETAIL:
            detail = TextLine(id="detail", classes="panel")
            detail.border_title = self.DETAIL
            yield detail
        yield TextLine(id="hint")
        yield Input(placeholder="filter…", id="filter", compact=True)

    def columns(self) -> Sequence[str]:
        """The columns there is room for, from the left."""
        return self.COLUMNS

    def rows(self, state: AppState, now: float) -> list[TableRow]:
        """All rows, newest first."""
        return []

    def chosen(self, key: str) -> None:
        """Enter on a row."""

    def show_body(self, state: AppState, now: float) -> None:
        """Bring the table up to date; the cursor stays on its row."""
        everything = self.rows(state, now)
        words = self._filter.split()
        rows = [row for row in everything if all(word in row.text for word in words)]
        hint = keyed(self._ways(state) if everything else self.EMPTY, state)
        if self._filter:
            ways = keyed("{list.filter} change   {app.back} clear", state)
            hint = f"{len(rows)} of {len(everything)} with “{self._filter}”   {ways}"
        self.query_one("#hint", TextLine).put(Content(hint))
        self._refill(rows)
        key = self.key_under_cursor()
        if self.DETAIL and self.has_class("-wide"):
            shown = DETAILS[self.DETAIL](state, key) if key is not None else ()
            self.query_one("#detail", TextLine).put(lines(*shown))

    def _ways(self, state: AppState) -> str:
        """Of the hint, the keys that do something now."""
        refused = {id_ for id_, action in ACTION_OF.items() if why_not(action, state) is not None}
        ways = self.HINT.split(GAP)
        if self.ENTER in refused:
            ways = [way for way in ways if not way.startswith("enter ")]
        return GAP.join(way for way in ways if not any(f"{{{id_}}}" in way for id_ in refused))

    def _refill(self, rows: list[TableRow]) -> None:
        known = self._rows
        if known is not None and _same(rows, known):
            return
        table = self.query_one(DataTable)
        place = table.cursor_row
        held = known[place].key if known and 0 <= place < len(known) else ""
        fill(table, self.columns(), rows)
        at = next((i for i, row in enumerate(rows) if row.key == held), 0)
        table.move_cursor(row=at if place else 0, animate=False)
        self._rows = rows

    def key_under_cursor(self) -> str | None:
        """What identifies the row under the cursor."""
        at = self.query_one(DataTable).cursor_row
        return self._rows[at].key if self._rows and 0 <= at < len(self._rows) else None

    def move(self, rows: int) -> None:
        """Move the cursor by rows, not past the ends."""
        table = self.query_one(DataTable)
        at = min(max(0, table.cursor_row + rows), max(0, table.row_count - 1))
        table.move_cursor(row=at, animate=False)

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

    @on(DataTable.RowHighlighted)
    def tell_more(self) -> None:
        """Another row is under the cursor."""
        if self.DETAIL and self.has_class("-wide"):
            self.fttui.redraw()

    @on(DataTable.RowSelected)
    def choose(self, event: DataTable.RowSelected) -> None:
        """Enter on a row."""
        if event.row_key.value is not None:
            self.chosen(event.row_key.value)


def fill(table: DataTable[Content], names: Sequence[str], rows: Sequence[TableRow]) -> None:
    """Put rows into a table, each column as wide as its widest cell."""
    table.clear(columns=True)
    for at, name in enumerate(names):
        width = max([len(name), *(row.cells[at].cell_length for row in rows)])
        table.add_column(name, width=width)
    for row in rows:
        table.add_row(*row.cells[: len(names)], key=row.key)


def _same(rows: Sequence[TableRow], others: Sequence[TableRow]) -> bool:
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
    DETAIL = "anomaly"
    EMPTY = "No anomaly so far. The guard looks at loss and gradients before every update."
    HINT = "enter report   {anomaly.recover} ADVICE   {list.filter} filter   {app.back} back"

    def _ways(self, state: AppState) -> str:
        """The advice by its name: it need not be a recovery."""
        return super()._ways(state).replace("ADVICE", label_of(ACTION_OF["anomaly.recover"], state))

    def rows(self, state: AppState, now: float) -> list[TableRow]:
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
            found.append(TableRow(event.id, cells))
        return found

    def chosen(self, key: str) -> None:
        """Open its report."""
        self.fttui.open_report(key)


class Checkpoints(ListScreen):
    """Checkpoints; enter rolls back to one."""

    COLUMNS = ("step", "age", "loss", "since", "what is lost", "", "note", "name", "size")
    NAME = "checkpoints"
    ENTER = "run.rollback"
    DETAIL = "checkpoint: then and now"
    EMPTY = "No checkpoint yet; {checkpoint.save} writes one."
    HINT = "enter go back   {checkpoint.save} save   {checkpoint.pin} pinned   {list.filter} find"

    def rows(self, state: AppState, now: float) -> list[TableRow]:
        """One per checkpoint on disk."""
        here = now + state.link.clock_offset_s
        current = value_at(state.run, smoothed(SMOOTHINGS[0]), None)
        return [
            TableRow(
                c.name,
                (
                    cell(f"{c.step:>7,}"),
                    cell(f"{fmt.age(here - c.time):>5}", DIM),
                    cell(f"{fmt.number(c.loss):>7}"),
                    cell(_since(c.loss, current)),
                    cell(given_up(state, c).words, DIM),
                    _standing(c.good, c.pinned),
                    cell(c.note, DIM),
                    cell(c.name),
                    cell(f"{fmt.size(c.size_bytes):>9}", DIM),
                ),
            )
            for c in reversed(state.run.checkpoints)
        ]

    def chosen(self, key: str) -> None:
        """Ask to roll back to it."""
        self.fttui.ask_rollback(key)


def _since(then: float | None, now: float | None) -> str:
    """How the loss has changed since: `▾ 0.12`."""
    if then is None or now is None or not math.isfinite(then - now):
        return "–"
    if math.isclose(then, now, rel_tol=1e-9):  # the same, but for the rounding of the smoothing
        return "–"
    return f"{'▾' if now <= then else '▴'} {fmt.number(abs(now - then))}"


def _standing(good: bool, pinned: bool) -> Content:
    """Saved means written and read back; good is more than that."""
    pieces: list[Piece] = ["✓ ", ("good", ACCENT) if good else ("△ doubtful", WATCH)]
    if pinned:
        pieces.append(" pinned")
    return assemble(*pieces)


_PHASE_STYLE = {Phase.APPLIED: ACCENT, Phase.FAILED: ALARM, Phase.REJECTED: ALARM, Phase.SENT: DIM}


class InterventionList(ListScreen):
    """Who changed what, when, why, and its effect."""

    COLUMNS = ("step", "who", "command", "outcome", "why", "took", "at")
    NAME = "interventions"
    DETAIL = "intervention"
    EMPTY = "No intervention so far; {lr.change} changes the learning rate, {clip.change} the clip."

    def shows_outcomes(self) -> bool:
        """It is the list of them."""
        return True

    def rows(self, state: AppState, now: float) -> list[TableRow]:
        """One per command."""
        return [
            TableRow(
                item.id,
                (
                    cell("–" if item.step is None else f"{item.step:>7,}"),
                    cell(item.issuer, DIM),
                    cell(item.text),
                    cell(item.outcome(), _PHASE_STYLE.get(item.phase, "")),
                    cell(state.run.interventions.why(item), DIM),
                    cell(fmt.duration(item.seconds) if item.seconds else "", DIM),
                    cell(_clock(item.time or item.sent_at), DIM),
                ),
            )
            for item in reversed(state.run.interventions.items)
        ]


class Samples(ListScreen):
    """Texts the adapter wrote; enter shows one in full."""

    COLUMNS = ("step", "prompt", "text")
    NAME = "samples"
    DETAIL = "sample"
    EMPTY = "No sample so far; {run.sample} generates one from the current adapter."
    HINT = "enter read   {run.sample} generate   {list.filter} filter   {app.back} back"

    def rows(self, state: AppState, now: float) -> list[TableRow]:
        """One per sample."""
        return [
            TableRow(
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
    HINT = "newest first   {list.filter} filter, such as: r1 error   {app.back} back"

    def rows(self, state: AppState, now: float) -> list[TableRow]:
        """One per line."""
        colours = {"error": ALARM, "warning": WATCH, "debug": DIM}
        return [
            TableRow(
                f"{line.time}-{index}",
                (
                    cell(_clock(line.time), DIM),
                    cell(line.level, colours.get(line.level, DIM)),
                    cell(f"r{line.rank}", DIM),
                    cell(_flat(line.text), colours.get(line.level, "")),
                ),
            )
            for index, line in reversed(list(enumerate(state.run.log)))
        ]


class Config(ListScreen):
    """The resolved configuration: every key, its value, and where that comes from."""

    COLUMNS = ("key", "value", "from", "in the file")
    NAME = "configuration"
    EMPTY = "Not known: the run's folder is not on this machine."
    HINT = "{list.filter} filter, such as: train file, or: default   {app.back} back"

    def rows(self, state: AppState, now: float) -> list[TableRow]:
        """One per key, in the order of the file."""
        looks = {"file": ACCENT, "--set": WATCH}
        return [
            TableRow(
                s.key,
                (
                    cell(s.key),
                    cell(fmt.clip_to(_flat(s.value), 60)),
                    cell(s.origin, looks.get(s.origin, DIM)),
                    cell(fmt.clip_to(s.written, 30), DIM),
                ),
            )
            for s in state.about.settings
        ]


def _clock(time_s: float | None) -> str:
    return "" if time_s is None else time.strftime("%H:%M:%S", time.localtime(time_s))


def _flat(text: str) -> str:
    return " ".join(text.split())
