"""The plot widget: title, axes and event marks around curves drawn as dots."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.content import Content
from textual.geometry import Region
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from ..plot import raster
from ..plot.layers import PlotPicture, column_of, picture
from ..plot.panels import Panel
from ..plot.ticks import axis_label, axis_ticks, log_ticks, ticks
from ..text import format as fmt
from ..view_model.app_state import AppState
from ..view_model.axis import place_of, place_of_mark, step_of
from ..view_model.run_view import Mark
from .text_line import assemble

GUTTER = 8
"""Cells to the left of the canvas, for axis labels and the axis."""
MARK_SHAPE = {
    "info": "·", "command": "┴", "checkpoint": "◆", "verdict": "✓", "note": "✎", "rollback": "↺",
    "watch": "△", "alarm": "▲",
}  # fmt: skip
"""Signs of events on the x axis, in ascending priority: later kinds are drawn over earlier ones."""
MARK_RANK = {kind: rank for rank, kind in enumerate(MARK_SHAPE)}
_BLANK = Style()
"""Textual's NO_COLOR filter needs a style on every segment."""


class Plot(Widget, can_focus=True):
    """Draws one panel of curves in the styles of the `PlotScreen` it is on."""

    LOOKS: ClassVar[tuple[str, ...]] = (
        "axis", "mark", "alarm", "watch", "cursor", "raw", "ema", "live", "eval", "clip", "old",
        "band", "limit", "run1", "run2", "run3", "run4",
    )  # fmt: skip

    @dataclass
    class Pointed(Message):
        """The mouse was clicked at a step."""

        step: int

    def __init__(self, panel: Panel) -> None:
        super().__init__(classes="plot")
        self.panel = panel
        self._state: AppState | None = None
        self._drawn: object = None
        self._seen: object = None
        self._looks: dict[str, Style] = {}
        self._picture = PlotPicture()
        self._sheet: raster.Sheet | None = None
        self._strips: list[Strip] = []
        self._narrow: tuple[Region, ...] = ()
        self._shown_title: Content | None = None
        self._shown_subtitle = ""

    def refresh(
        self,
        *regions: Region,
        repaint: bool = True,
        layout: bool = False,
        recompose: bool = False,
    ) -> Self:
        """Repaint; a new title repaints only its own line, not the whole widget as in Textual."""
        rows = regions or self._narrow
        return super().refresh(*rows, repaint=repaint, layout=layout, recompose=recompose)

    @property
    def columns(self) -> int:
        """Width of the canvas in cells."""
        return max(1, self.content_size.width - GUTTER)

    @property
    def lines(self) -> int:
        """Height of the canvas in cells."""
        return max(1, self.content_size.height - 2)

    def offer(self, state: AppState) -> None:
        """Draw the state: at the next idle moment if in view, else when it comes into view."""
        self._state = state
        if self.is_on_screen:
            self.call_later(self.show, state)

    def on_show(self) -> None:
        """Draw the newest state when the plot comes into view."""
        if self._state is not None:
            self.show(self._state)

    def show(self, state: AppState) -> None:
        """Draw the state, unless the result would look the same."""
        self._state = state
        name, rest = self.panel.title_of(state)
        self._title(assemble((name, "bold"), rest), self.panel.subtitle(state))
        key = (state.run.branches, len(state.run.marks), state.plot, self.content_size)
        known = self._drawn
        if isinstance(known, tuple) and known[0] is key[0] and known[1:] == key[1:]:
            return
        self._drawn = key
        if self._draw(state):
            self._paint()

    def _title(self, title: Content, subtitle: str) -> None:
        frame = self.outer_size
        above = Region(-1, -1, frame.width, 1)
        if title != self._shown_title:
            self._shown_title, self._narrow = title, (above,)
            self.border_title = title
        if subtitle != self._shown_subtitle:
            self._shown_subtitle = subtitle
            self._narrow = (above.translate((0, frame.height - 1)),)
            self.border_subtitle = subtitle
        self._narrow = ()

    def on_click(self, event: events.Click) -> None:
        """Move the cursor to the step that was clicked."""
        column = event.get_content_offset_capture(self).x - GUTTER
        if self._state is not None and 0 <= column < self.columns:
            low, high = self._picture.x
            x = low + (column + 0.5) / self.columns * (high - low)
            branches, axis = self._state.run.branches, self._state.plot.axis
            step = min(step_of(branches, axis, x), self._state.run.step)
            self.post_message(self.Pointed(max(0, step)))

    def on_resize(self, event: events.Resize) -> None:
        """Redraw for the new size."""
        if self._state is not None:
            self.show(self._state)

    @property
    def picture(self) -> PlotPicture:
        """The picture that is drawn now."""
        return self._picture

    def picture_of(self, state: AppState) -> PlotPicture:
        """Return the picture of this panel for a state."""
        return picture(
            state.run.branches,
            self.panel.curves(state),
            state.plot.window(float(max(state.run.step, 1))),
            self.columns,
            axis=state.plot.axis,
            log_y=state.plot.log_y and self.panel.can_log,
            floor=self.panel.floor,
            limits=self.panel.limits(state),
        )

    def _draw(self, state: AppState) -> bool:
        """Draw the cells; return whether they changed."""
        drawn = self.picture_of(state)
        seen = (drawn, state.run.marks, state.plot.cursor, self.content_size)
        if seen == self._seen:
            return False
        self._seen = seen
        self._picture = drawn
        if self.content_size.height < 3 or drawn.empty:
            self._sheet = None
            return True
        ascii_only = bool(getattr(self.app, "ascii_only", False))
        canvas = raster.draw(drawn, self.columns, self.lines, ascii_only=ascii_only)
        self._sheet = self._framed(canvas, state)
        return True

    def _framed(self, canvas: raster.Sheet, state: AppState) -> raster.Sheet:
        """Return the canvas with cursor, marks and axes; layers become indices of `LOOKS`."""
        sheet = raster.blank(GUTTER + self.columns, self.lines + 2)
        looks = np.array([self.LOOKS.index(layer.style) for layer in self._picture.layers] + [0])
        sheet.chars[:-2, GUTTER:] = canvas.chars
        sheet.layers[:] = 0
        sheet.layers[:-2, GUTTER:] = looks[canvas.layers]
        self._overlay(sheet, state)
        self._y_axis(sheet)
        self._x_axis(sheet, state)
        self._x_labels(sheet, state)
        return sheet

    def _overlay(self, sheet: raster.Sheet, state: AppState) -> None:
        """Draw over the curves: the cursor, and signs for non-finite and out-of-range values."""
        chars, looks = sheet.chars[:-2, GUTTER:], sheet.layers[:-2, GUTTER:]
        cursor, axis = state.plot.cursor, state.plot.axis
        window = self._picture.x
        at = None if cursor is None else place_of(state.run.branches, axis, cursor)
        if at is not None and window[0] <= at <= window[1]:
            column = column_of(at, window, self.columns)
            free = chars[:, column] == raster.BLANK
            chars[free, column] = ord("│")
            looks[free, column] = self.LOOKS.index("cursor")
        for row, sign, xs in ((0, "↑", self._picture.over), (-1, "✗", self._picture.gaps)):
            for x in xs:
                self._put(sheet, row if row >= 0 else self.lines - 1, x, sign, "alarm")

    def _put(self, sheet: raster.Sheet, row: int, x: float, sign: str, look: str) -> None:
        column = GUTTER + column_of(x, self._picture.x, self.columns)
        sheet.chars[row, column] = ord(sign)
        sheet.layers[row, column] = self.LOOKS.index(look)

    def _y_axis(self, sheet: raster.Sheet) -> None:
        lines = self.lines
        sheet.chars[:lines, GUTTER - 1] = ord("│")
        for value in self._y_ticks(min(6, max(2, lines // 2))):
            line = lines - 1 - column_of(value, self._picture.y, lines)
            _write(sheet, line, 0, f"{self._label(value)[: GUTTER - 2]:>{GUTTER - 2}} ┤")

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

    def _x_axis(self, sheet: raster.Sheet, state: AppState) -> None:
        """Draw the x axis and the events on it; of several in a column, the most important one."""
        _write(sheet, self.lines, GUTTER - 1, "└" + "─" * self.columns)
        window = self._picture.x
        for mark in sorted(self._marks(state), key=lambda m: MARK_RANK[m.kind]):
            x = place_of_mark(state.run.branches, state.plot.axis, mark)
            if window[0] <= x <= window[1]:
                look = mark.kind if mark.kind in ("alarm", "watch") else "mark"
                self._put(sheet, self.lines, x, MARK_SHAPE[mark.kind], look)

    def _marks(self, state: AppState) -> Iterable[Mark]:
        return (mark for mark in state.run.marks if mark.kind in MARK_SHAPE)

    def _x_labels(self, sheet: raster.Sheet, state: AppState) -> None:
        first, last = self._picture.x
        axis = state.plot.axis
        origin = (state.run.started_at or first) if axis == "time" else 0.0
        free = 0
        for value in axis_ticks(axis, first - origin, last - origin, self.columns // 14):
            label = axis_label(axis, value)
            at = column_of(value + origin, (first, last), self.columns) - len(label) // 2
            at = GUTTER + min(max(at, 0), self.columns - len(label))
            if at >= max(free, GUTTER):
                _write(sheet, self.lines + 1, at, label)
                free = at + len(label) + 2

    def _paint(self) -> None:
        """Turn the cells into styled lines and repaint those that changed."""
        if not self._looks:
            look_up = self.screen.get_component_rich_style
            self._looks = {look: look_up(f"plot--{look}") for look in self.LOOKS}
        before = self._strips
        width, height = self.content_size
        sheet = self._sheet
        if sheet is None:
            why = self.panel.empty if self._picture.empty else "not enough height to draw"
            hint = Segment(why.center(width), self._looks["axis"])
            self._strips = [Strip.blank(width, _BLANK)] * (height // 2) + [Strip([hint])]
        else:
            styles = [self._looks[look] for look in self.LOOKS]
            self._strips = [
                Strip(_segments(chars, looks, styles)).adjust_cell_length(width, _BLANK)
                for chars, looks in zip(sheet.chars, sheet.layers, strict=True)
            ]
        if len(before) != len(self._strips):
            self.refresh()
            return
        pairs = enumerate(zip(before, self._strips, strict=True))
        changed = [Region(0, y, width, 1) for y, (old, new) in pairs if old != new]
        if changed:
            self.refresh(*changed)

    def render_line(self, y: int) -> Strip:
        """Return one line of the plot's cells, as Textual asks for it."""
        if y < len(self._strips):
            return self._strips[y]
        return Strip.blank(self.content_size.width, _BLANK)

    def notify_style_update(self) -> None:
        """Look the styles up again and repaint, after a change of theme."""
        super().notify_style_update()
        self._looks = {}
        if self._strips:
            self._paint()


def _write(sheet: raster.Sheet, row: int, column: int, text: str) -> None:
    room = sheet.chars.shape[1] - column
    sheet.chars[row, column : column + len(text)] = [ord(char) for char in text[:room]]


def _segments(
    chars: NDArray[np.uint32], looks: NDArray[np.int16], styles: Sequence[Style]
) -> list[Segment]:
    """Return a line's cells as segments, one per run of cells in the same style."""
    text = chars.astype("<u4").tobytes().decode("utf-32-le")
    cuts = [0, *(np.flatnonzero(np.diff(looks)) + 1).tolist(), len(text)]
    return [Segment(text[a:b], styles[looks[a]]) for a, b in pairwise(cuts)]
