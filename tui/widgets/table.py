"""Rows and cells of the data tables in screens and dialogs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from textual.content import Content
from textual.widgets import DataTable

from ..text import format as fmt
from .text_line import Piece, assemble


@dataclass(frozen=True)
class TableRow:
    """One row of a table."""

    key: str
    """Identifies the row across redraws, such as a checkpoint's name."""
    cells: tuple[Content, ...]
    below: Content | None = None
    """A second line, which narrow screens show below the column that is shortened."""

    @property
    def text(self) -> str:
        """The row as lower-case text, which the filter searches."""
        return " ".join(cell.plain for cell in self.cells).lower()


@dataclass(frozen=True)
class Layout:
    """Which cells of the rows a table shows, and how wide it may be."""

    columns: tuple[tuple[int, str], ...]
    """Index of the cell in a row, and name of the column."""
    flexible: str | None = None
    """Name of the column that is shortened if the table is too wide; None for none."""
    room: int = 0
    """Cells between the borders of the table; 0 for any width."""
    below: bool = False
    """Whether the second lines of rows are shown."""

    @classmethod
    def of(cls, *names: str) -> Layout:
        """Return the layout that shows the first cells of every row in columns of these names."""
        return cls(tuple(enumerate(names)))


def cell(text: str, style: str = "") -> Content:
    """Return a text, in a style if one is given, as a cell of a table."""
    piece: Piece = (text, style) if style else text
    return assemble(piece)


LEAST_WIDTH = 12
"""Fewest cells to which the flexible column is narrowed."""


def fill(table: DataTable[Content], layout: Layout, rows: Sequence[TableRow]) -> None:
    """Replace a table's columns and rows; each column is as wide as its widest cell.

    The flexible column is narrowed until the table fits into its room.
    """
    table.clear(columns=True)
    shown = [[_lines(row, at, name, layout) for at, name in layout.columns] for row in rows]
    widths = _widths(table, layout, shown)
    for (_, name), width in zip(layout.columns, widths, strict=True):
        table.add_column(name, width=width)
    for row, cells in zip(rows, shown, strict=True):
        cut = [_cut(cell, width) for cell, width in zip(cells, widths, strict=True)]
        table.add_row(*cut, key=row.key, height=2 if layout.below and row.below else 1)


def _lines(row: TableRow, at: int, name: str, layout: Layout) -> list[Content]:
    below = row.below if layout.below and name == layout.flexible else None
    return [row.cells[at]] if below is None else [row.cells[at], below]


def _widths(
    table: DataTable[Content], layout: Layout, shown: Sequence[Sequence[Sequence[Content]]]
) -> list[int]:
    names = [name for _, name in layout.columns]
    widths = [
        max([len(name), *(line.cell_length for row in shown for line in row[at])])
        for at, name in enumerate(names)
    ]
    excess = sum(widths) + 2 * table.cell_padding * len(widths) - layout.room
    if layout.room and excess > 0 and layout.flexible in names:
        at = names.index(layout.flexible)
        widths[at] = max(LEAST_WIDTH, widths[at] - excess)
    return widths


def _cut(rows: Sequence[Content], width: int) -> Content:
    return Content("\n").join(row.truncate(width, ellipsis=True) for row in rows)


def clock_time(time_s: float | None) -> str:
    """Return Unix seconds as local time of day, `12:04:33`; empty for None."""
    return "" if time_s is None else fmt.clock(time_s)


def one_line(text: str) -> str:
    """Return a text with every run of white space, line breaks included, as one space."""
    return " ".join(text.split())
