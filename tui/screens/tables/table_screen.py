"""The base of all table screens: rows, filter, cursor, note and detail panel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.content import Content
from textual.widgets import DataTable, Input

from ...actions import ACTION_OF, bindings, keyed
from ...view_model.app_state import AppState
from ...widgets.table import Layout, TableRow, fill
from ...widgets.text_line import DIM, TextLine, assemble, lines, plain
from ..base import RunScreen
from ..text_page import TextPage
from .details import DETAILS

FRAME = 4
"""Cells of a table's width that are its border and its scroll bar."""


class TableScreen(RunScreen):
    """A table with a filter; enter acts on the row under the cursor."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings("list")]
    COLUMNS: ClassVar[tuple[str, ...]] = ()
    NARROW: ClassVar[tuple[str, ...]] = ()
    """The columns that narrow screens show; empty for all."""
    FLEXIBLE: ClassVar[str | None] = None
    """Name of the column that is shortened in narrow screens, and has the second lines."""
    WIDE_FLEXIBLE: ClassVar[str | None] = None
    """Name of the column that is shortened in wider screens; None for none."""
    NAME: ClassVar[str] = ""
    EMPTY: ClassVar[str] = ""
    """What the note below the table says while the table has no rows."""
    EXAMPLE: ClassVar[str] = ""
    """An example of a useful filter on this screen."""
    DETAIL: ClassVar[str] = ""
    """Key of `DETAILS`: the details shown beside the table in wide terminals."""

    def __init__(self) -> None:
        super().__init__()
        self._filter = ""
        self._rows: list[TableRow] | None = None
        self._layout: Layout | None = None

    def compose_body(self) -> ComposeResult:
        """Compose table, details, note and filter."""
        table: DataTable[Content] = DataTable(cursor_type="row", zebra_stripes=False)
        table.border_title = self.NAME
        yield table
        if self.DETAIL:
            detail = TextLine(id="detail", classes="panel")
            detail.border_title = self.DETAIL
            yield detail
        yield TextLine(id="hint")
        example = f", such as: {self.EXAMPLE}" if self.EXAMPLE else ""
        words = f"filter: words that a row must contain{example}"
        yield Input(placeholder=words, id="filter", compact=True)

    def numbered(self) -> Mapping[str, str]:
        """Return the table, under the key that opens its screen."""
        action_id = f"go.{self.fttui.current_mode}"
        return {"#body > DataTable": action_id} if action_id in ACTION_OF else {}

    def columns(self) -> Sequence[str]:
        """Return the names of the columns to show, some of `COLUMNS`."""
        return self.NARROW if self.NARROW and self.has_class("-narrow") else self.COLUMNS

    def _new_layout(self, table: DataTable[Content]) -> Layout:
        columns = tuple((self.COLUMNS.index(name), name) for name in self.columns())
        room = max(0, table.container_size.width - FRAME)
        if not self.NARROW or not self.has_class("-narrow"):
            return Layout(columns, flexible=self.WIDE_FLEXIBLE, room=room)
        return Layout(columns, flexible=self.FLEXIBLE, room=room, below=True)

    def rows(self, state: AppState, now: float) -> list[TableRow]:
        """Return all rows in the order shown, before the filter."""
        return []

    def chosen(self, key: str) -> None:
        """Act on the row with this key, when enter is pressed on it: show all about it."""
        if self.DETAIL:
            shown = lines(*DETAILS[self.DETAIL](self.fttui.state, key))
        else:
            row = next(row for row in self._rows or () if row.key == key)
            named = zip(self.COLUMNS, row.cells, strict=False)
            shown = lines(*(assemble((f"{name}: ", DIM), text) for name, text in named))
        self.fttui.push_screen(TextPage(self.NAME, shown))

    def show_body(self, state: AppState, now: float) -> None:
        """Update the table; the cursor stays on its row."""
        everything = self.rows(state, now)
        words = self._filter.split()
        rows = [row for row in everything if all(word in row.text for word in words)]
        note = "" if everything else keyed(self.EMPTY, state)
        if self._filter:
            keys = keyed("{list.filter} change   {app.back} clear", state)
            note = f"{len(rows)} of {len(everything)} match “{self._filter}”   {keys}"
        self.put_note(plain(note))
        self._refill(rows)
        key = self.key_under_cursor()
        if self.DETAIL and self.has_class("-wide"):
            shown = DETAILS[self.DETAIL](state, key) if key is not None else ()
            self.query_one("#detail", TextLine).put(lines(*shown))

    def put_note(self, note: Content) -> None:
        """Show a note below the table; an empty one takes no line.

        The keys of the screen are in the footer, not in notes.
        """
        line = self.query_one("#hint", TextLine)
        line.display = bool(note)
        line.put(note)

    def _refill(self, rows: list[TableRow]) -> None:
        known, table = self._rows, self.query_one(DataTable)
        layout = self._new_layout(table)
        if known is not None and layout == self._layout and _same(rows, known):
            return
        self._layout = layout
        place = table.cursor_row
        held = known[place].key if known and 0 <= place < len(known) else ""
        fill(table, layout, rows)
        at = next((i for i, row in enumerate(rows) if row.key == held), 0)
        table.move_cursor(row=at if place else 0, animate=False)
        self._rows = rows

    def key_under_cursor(self) -> str | None:
        """Return the key of the row under the cursor, or None if the table is empty."""
        at = self.query_one(DataTable).cursor_row
        return self._rows[at].key if self._rows and 0 <= at < len(self._rows) else None

    def row_text(self) -> str:
        """Return the row under the cursor as plain text, its cells by tabs; empty without one."""
        at = self.query_one(DataTable).cursor_row
        if not self._rows or not 0 <= at < len(self._rows):
            return ""
        return "\t".join(cell.plain.strip() for cell in self._rows[at].cells)

    def move(self, rows: int) -> None:
        """Move the cursor by a number of rows, within the table."""
        table = self.query_one(DataTable)
        at = min(max(0, table.cursor_row + rows), max(0, table.row_count - 1))
        table.move_cursor(row=at, animate=False)

    def open_filter(self) -> None:
        """Show the filter and focus it."""
        field = self.query_one("#filter", Input)
        field.add_class("-open")
        field.focus()

    def close_filter(self) -> bool:
        """Clear and hide the filter; return whether one was open or in force."""
        field = self.query_one("#filter", Input)
        had = bool(self._filter) or field.has_class("-open")
        field.value = ""
        field.remove_class("-open")
        self.query_one(DataTable).focus()
        return had

    @on(Input.Changed, "#filter")
    def narrow(self, event: Input.Changed) -> None:
        """Show only the rows that contain every word of the filter."""
        self._filter = event.value.strip().lower()
        self.fttui.redraw()

    @on(Input.Submitted, "#filter")
    def keep(self) -> None:
        """Hide the input of the filter, keep the filter, and return the focus to the table."""
        self.query_one("#filter", Input).remove_class("-open")
        self.query_one(DataTable).focus()

    @on(DataTable.RowHighlighted)
    def show_details(self) -> None:
        """Show the details of the row that the cursor moved to."""
        if self.DETAIL and self.has_class("-wide"):
            self.fttui.redraw()

    @on(DataTable.RowSelected)
    def choose(self, event: DataTable.RowSelected) -> None:
        """Act on the row that enter was pressed on."""
        if event.row_key.value is not None:
            self.chosen(event.row_key.value)


def _same(rows: Sequence[TableRow], others: Sequence[TableRow]) -> bool:
    if len(rows) != len(others):
        return False
    return all(
        a.key == b.key
        and _is_same(a.below, b.below)
        and all(x.is_same(y) for x, y in zip(a.cells, b.cells, strict=True))
        for a, b in zip(rows, others, strict=True)
    )


def _is_same(below: Content | None, other: Content | None) -> bool:
    return below is other if below is None or other is None else below.is_same(other)
