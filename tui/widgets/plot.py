"""A plot: title, axes and marks of our own around a canvas drawn by plotext."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.content import Content
from textual.strip import Strip
from textual.widget import Widget

from ..state import format as fmt
from ..state.app import AppState
from ..state.panels import Panel
from ..state.picture import Picture, column_of, log_ticks, picture, ticks
from ..state.run import Mark
from . import canvas

GUTTER = 8
"""Cells left of the canvas: label and axis."""
MARK_SHAPE = {"checkpoint": "◆", "rollback": "↺", "anomaly": "▲", "note": "✎", "command": "┴"}
MARK_RANK = {"command": 0, "checkpoint": 1, "note": 2, "rollback": 3, "anomaly": 4}
_BLANK = Style()
"""Textual's NO_COLOR filter needs a style on every segment."""
_Cell = tuple[str, str]
"""A character and the name of its look."""


class Plot(Widget, can_focus=True):
    """One panel of curves.

    | Component class | What |
    | :- | :- |
    | `plot--raw`, `--ema`, `--live`, `--eval`, `--clip`, `--old` | curves |
    | `plot--axis`, `--mark`, `--alarm`, `--cursor` | around and over them |
    """

    LOOKS: ClassVar[tuple[str, ...]] = (
        "raw", "ema", "live", "eval", "clip", "old", "axis", "mark", "alarm", "cursor",
    )  # fmt: skip
    COMPONENT_CLASSES: ClassVar[set[str]] = {f"plot--{look}" for look in LOOKS}

    def __init__(self, panel: Panel) -> None:
        super().__init__(id=f"plot-{panel.id}", classes="plot")
        self.panel = panel
        self._state: AppState | None = None
        self._drawn: object = None
        self._seen: object = None
        self._looks: dict[str, Style] = {}
        self._picture = Picture()
        self._rows: list[list[_Cell]] = []
        self._strips: list[Strip] = []

    @property
    def columns(self) -> int:
        """Cells of the canvas across."""
        return max(1, self.content_size.width - GUTTER)

    @property
    def lines(self) -> int:
        """Cells of the canvas down."""
        return max(1, self.content_size.height - 2)

    def offer(self, state: AppState) -> None:
        """Draw the state soon if in view, else when it comes into view."""
        self._state = state
        if self.is_on_screen:
            self.call_later(self.show, state)

    def on_show(self) -> None:
        """Scrolled or switched into view."""
        if self._state is not None:
            self.show(self._state)

    def show(self, state: AppState) -> None:
        """Draw the state; nothing is redrawn when it would look the same."""
        self._state = state
        name, rest = self.panel.title_of(state)
        self.border_title = Content.assemble((name, "bold"), rest)
        self.border_subtitle = self.panel.subtitle(state)
        key = (state.run.branches, len(state.run.marks), state.plot, self.content_size)
        known = self._drawn
        if isinstance(known, tuple) and known[0] is key[0] and known[1:] == key[1:]:
            return
        self._drawn = key
        if self._draw(state):
            self._paint()

    def on_resize(self, event: events.Resize) -> None:
        """The canvas has another size."""
        if self._state is not None:
            self.show(self._state)

    def _draw(self, state: AppState) -> bool:
        """Draw the rows; False when they are as before."""
        newest = float(max(state.run.step, 1))
        drawn = picture(
            state.run.branches,
            self.panel.curves(state),
            state.plot.window(newest),
            self.columns,
            log_y=state.plot.log_y and self.panel.can_log,
            floor=self.panel.floor,
        )
        seen = (drawn, state.run.marks, state.plot.cursor, self.content_size)
        if seen == self._seen:
            return False
        self._seen = seen
        self._picture = drawn
        if self.content_size.height < 3 or self._picture.empty:
            self._rows = []
            return True
        ascii_only = bool(getattr(self.app, "ascii_only", False))
        rows = [self._cells(row) for row in self._canvas(ascii_only)]
        self._overlay(rows, state)
        self._rows = [
            *(label + row for label, row in zip(self._y_labels(), rows, strict=False)),
            self._axis(state.run.marks),
            self._x_labels(),
        ]
        return True

    def _canvas(self, ascii_only: bool) -> list[canvas.Row]:
        return canvas.draw(self._picture, self.columns, self.lines, ascii_only=ascii_only)

    def _cells(self, row: canvas.Row) -> list[_Cell]:
        layers = self._picture.layers
        cells: list[_Cell] = []
        for text, number in row:
            look = layers[number].style if 0 <= number < len(layers) else "axis"
            cells.extend((char, look) for char in text)
        return cells[: self.columns] + [(" ", "axis")] * (self.columns - len(cells))

    def _overlay(self, rows: list[list[_Cell]], state: AppState) -> None:
        """Marks over the curves: cursor, values that were not finite, values out of range."""
        window = self._picture.x
        if state.plot.cursor is not None and window[0] <= state.plot.cursor <= window[1]:
            at = column_of(state.plot.cursor, window, self.columns)
            for row in rows:
                if row[at][0] in " \u2800":
                    row[at] = ("│", "cursor")
        for x in self._picture.over:
            rows[0][column_of(x, window, self.columns)] = ("↑", "alarm")
        for x in self._picture.gaps:
            rows[-1][column_of(x, window, self.columns)] = ("✗", "alarm")

    def _y_labels(self) -> list[list[_Cell]]:
        low, high = self._picture.y
        lines = self.lines
        labels = [" " * (GUTTER - 1) + "│"] * lines
        for value in self._y_ticks(min(6, max(2, lines // 2))):
            line = lines - 1 - column_of(value, (low, high), lines)
            labels[line] = f"{self._label(value)[: GUTTER - 2]:>{GUTTER - 2}} ┤"
        return [[(char, "axis") for char in label] for label in labels]

    def _y_ticks(self, most: int) -> list[float]:
        low, high = self._picture.y
        if self._picture.log_y:
            return log_ticks(low, high, most)
        unit = self.panel.unit
        return [value * unit for value in ticks(low / unit, high / unit, most)]

    def _label(self, value: float) -> str:
        low, high = self._picture.y
        if self._picture.log_y:
            return f"{10**value:.4g}"
        text = self.panel.label(value) if self.panel.label else fmt.tick(value, high - low)
        return text if len(text) <= GUTTER - 2 else fmt.scientific(value, 0)

    def _axis(self, marks: Sequence[Mark]) -> list[_Cell]:
        """The x axis with the events on it, the weightier one where two fall together."""
        cells: list[_Cell] = [(c, "axis") for c in " " * (GUTTER - 1) + "└" + "─" * self.columns]
        window = self._picture.x
        for mark in sorted(marks, key=lambda m: MARK_RANK.get(m.kind, -1)):
            if mark.kind in MARK_SHAPE and window[0] <= mark.step <= window[1]:
                at = GUTTER + column_of(mark.step, window, self.columns)
                look = "alarm" if mark.kind == "anomaly" else "mark"
                cells[at] = (MARK_SHAPE[mark.kind], look)
        return cells

    def _x_labels(self) -> list[_Cell]:
        line = [" "] * (self.columns + GUTTER)
        first, last = self._picture.x
        free = 0
        for value in ticks(first, last, max(1, self.columns // 14)):
            label = fmt.count(value)
            at = GUTTER + column_of(value, (first, last), self.columns) - len(label) // 2
            at = min(max(at, GUTTER), len(line) - len(label))
            if at >= free:
                line[at : at + len(label)] = label
                free = at + len(label) + 2
        return [(char, "axis") for char in line]

    def _paint(self) -> None:
        """Colour the rows; asked for again only when they or the theme change."""
        if not self._looks:
            self._looks = {k: self.get_component_rich_style(f"plot--{k}") for k in self.LOOKS}
        looks = self._looks
        width, height = self.content_size
        if not self._rows:
            hint = Segment("no values yet".center(width), looks["axis"])
            self._strips = [Strip.blank(width, _BLANK)] * (height // 2) + [Strip([hint])]
        else:
            self._strips = [
                Strip(_segments(row, looks)).adjust_cell_length(width, _BLANK) for row in self._rows
            ]
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """One line of the plot."""
        if y < len(self._strips):
            return self._strips[y]
        return Strip.blank(self.content_size.width, _BLANK)

    def notify_style_update(self) -> None:
        """Colours changed."""
        super().notify_style_update()
        self._looks = {}
        if self._strips:
            self._paint()


def _segments(cells: Sequence[_Cell], looks: Mapping[str, Style]) -> list[Segment]:
    """Neighbours of one look together."""
    return [
        Segment("".join(char for char, _ in group), looks[look])
        for look, group in groupby(cells, key=lambda cell: cell[1])
    ]
