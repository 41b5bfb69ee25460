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

    @property
    def text(self) -> str:
        """The row as lower-case text, which the filter searches."""
        return " ".join(cell.plain for cell in self.cells).lower()


def cell(text: str, style: str = "") -> Content:
    """Return a text, in a style if one is given, as a cell of a table."""
    piece: Piece = (text, style) if style else text
    return assemble(piece)


def fill(table: DataTable[Content], names: Sequence[str], rows: Sequence[TableRow]) -> None:
    """Replace a table's columns and rows; each column is as wide as its widest cell.

    `names` are the names of the columns; rows may have more cells, which are left out.
    """
    table.clear(columns=True)
    for at, name in enumerate(names):
        width = max([len(name), *(row.cells[at].cell_length for row in rows)])
        table.add_column(name, width=width)
    for row in rows:
        table.add_row(*row.cells[: len(names)], key=row.key)


def clock_time(time_s: float | None) -> str:
    """Return Unix seconds as local time of day, `12:04:33`; empty for None."""
    return "" if time_s is None else fmt.clock(time_s)


def one_line(text: str) -> str:
    """Return a text with every run of white space, line breaks included, as one space."""
    return " ".join(text.split())
