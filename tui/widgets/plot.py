"""The plot widget: title, axes and event marks around curves drawn as dots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Self

import numpy as np
from numpy.typing import NDArray
from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.content import Content
from textual.errors import NoWidget
from textual.geometry import Region
from textual.strip import Strip

from ..plot import raster
from ..plot.frame import BELOW, GUTTER, LOOKS, framed
from ..plot.layers import PlotPicture, YAxis, picture
from ..plot.panels import Entry, Panel
from ..view_model.app_state import AppState
from ..view_model.axis import step_of
from .plot_mouse import PlotMouse
from .text_line import DIM, Piece, assemble

BAND_LINES = 5
"""Least height of a canvas that has room for a band of values above the main range."""
LEGEND_SIGN = {
    "raw": "─",
    "live": "─",
    "ema": "━",
    "eval": "●",
    "clip": "┄",
    "held": "▇",
    "kept": "░",
}
"""The sign before an entry of the title that is the legend of a curve."""
_TITLE_STYLE = {"raw": "$plot-live"}
"""Styles of legends whose curve is too pale for text."""
_GAP = "  "
"""Between the entries of a title."""
_TITLE_ROOM = 6
"""Cells of the upper border that its title cannot use."""
UNDONE = "undone"
"""The component class of the shade behind abandoned steps."""
_BLANK = Style()
"""Textual's NO_COLOR filter needs a style on every segment."""


class Plot(PlotMouse, can_focus=True):
    """Draws one panel of curves in the styles of the `PlotScreen` it is on."""

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
        self._painted: raster.Sheet | None = None
        """The cells that the strips show."""
        self._styles: list[Style] = []
        self._narrow: tuple[Region, ...] = ()
        self._shown_title: tuple[str, list[Entry]] | None = None
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
        return max(1, self.content_size.height - BELOW)

    def offer(self, state: AppState) -> None:
        """Draw the state: at the next idle moment if in view, else when it comes into view."""
        self._state = state
        if self.in_view:
            self.call_later(self.show, state)

    @property
    def in_view(self) -> bool:
        """Whether a part of the plot is visible, and not only in the scrolled part of the screen.

        `is_on_screen` of Textual is true for both.
        """
        try:
            return bool(self.screen.find_widget(self).visible_region)
        except NoWidget:
            return False

    def on_show(self) -> None:
        """Draw the newest state when the plot comes into view."""
        if self._state is not None:
            self.show(self._state)

    def show(self, state: AppState) -> None:
        """Draw the state, unless the result would look the same."""
        self._state = state
        self._title(state)
        same = (state.run.branches, state.others)
        key = (*same, len(state.run.marks), state.plot, self.content_size)
        known = self._drawn
        kept = isinstance(known, tuple) and all(
            a is b for a, b in zip(known[:2], same, strict=True)
        )
        if isinstance(known, tuple) and kept and known[3:] == key[3:]:
            return
        self._drawn = key
        if self._draw(state):
            self._paint()

    def _title(self, state: AppState) -> None:
        frame = self.outer_size
        above = Region(-1, -1, frame.width, 1)
        name, subtitle = self.panel.name_in(state), self.panel.subtitle(state)
        title = (name, fitting_entries(name, self.panel.entries(state), frame.width - _TITLE_ROOM))
        if title != self._shown_title:
            self._shown_title, self._narrow = title, (above,)
            self.border_title = _assembled(*title)
        if subtitle != self._shown_subtitle:
            self._shown_subtitle = subtitle
            self._narrow = (above.translate((0, frame.height - 1)),)
            self.border_subtitle = subtitle
        self._narrow = ()

    def step_at(self, column: float) -> int | None:
        """Return the step at a column of the canvas, at most the newest; None before a state."""
        if self._state is None:
            return None
        low, high = self._picture.x
        x = low + column / self.columns * (high - low)
        step = step_of(self._state.run.branches, self._state.plot.axis, x)
        return max(0, min(step, self._state.run.step))

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
            y=YAxis(
                log=state.plot.log_y and self.panel.can_log,
                floor=self.panel.floor,
                limits=self.panel.limits(state),
                band=self.lines >= BAND_LINES,
            ),
            undone=state.plot.undone,
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
        self._sheet = framed(canvas, drawn, state, self.panel)
        return True

    def _paint(self) -> None:
        """Turn the cells into styled lines and repaint those that changed."""
        if not self._looks:
            look_up = self.screen.get_component_rich_style
            self._looks = {look: look_up(f"plot--{look}") for look in (*LOOKS, UNDONE)}
            self._styles = self._cell_styles()
            self._painted = None
        before = self._strips
        width, height = self.content_size
        sheet, painted = self._sheet, self._painted
        if sheet is None:
            why = self.panel.empty if self._picture.empty else "not enough height to draw"
            hint = Segment(why.center(width), self._looks["axis"])
            above = [Strip.blank(width, self._looks["axis"])] * (height // 2)
            self._strips = [*above, Strip([hint])]
        else:
            same = [False] * len(sheet.chars) if painted is None else _same_rows(sheet, painted)
            self._strips = [
                before[row] if kept else self._strip(sheet, row, width)
                for row, kept in enumerate(same)
            ]
        self._painted = sheet
        if len(before) != len(self._strips):
            self.refresh()
            return
        pairs = enumerate(zip(before, self._strips, strict=True))
        changed = [Region(0, y, width, 1) for y, (a, b) in pairs if a is not b and a != b]
        if changed:
            self.refresh(*changed)

    def _cell_styles(self) -> list[Style]:
        """Return the styles of all looks, then those of the same looks on the shade of a span."""
        styles = [self._looks[look] for look in LOOKS]
        shade = Style(bgcolor=self._looks[UNDONE].bgcolor)
        return [*styles, *(style + shade for style in styles)]

    def _strip(self, sheet: raster.Sheet, row: int, width: int) -> Strip:
        segments = _segments(sheet.chars[row], sheet.layers[row], self._styles)
        return Strip(segments).adjust_cell_length(width, self._looks["axis"])

    def render_line(self, y: int) -> Strip:
        """Return one line of the plot's cells, as Textual asks for it."""
        if y < len(self._strips):
            return self.selected(self._strips[y])
        return Strip.blank(self.content_size.width, self._looks.get("axis", _BLANK))

    def notify_style_update(self) -> None:
        """Look the styles up again and repaint, after a change of theme."""
        super().notify_style_update()
        self._looks = {}
        if self._strips:
            self._paint()


def _same_rows(sheet: raster.Sheet, other: raster.Sheet) -> list[bool]:
    """Return which rows of two sheets have the same cells; none if their sizes differ."""
    if sheet.chars.shape != other.chars.shape:
        return [False] * len(sheet.chars)
    same = (sheet.chars == other.chars) & (sheet.layers == other.layers)
    found: list[bool] = np.all(same, axis=1).tolist()
    return found


def _segments(
    chars: NDArray[np.uint32], looks: NDArray[np.int16], styles: Sequence[Style]
) -> list[Segment]:
    """Return a line's cells as segments, one per run of cells in the same style."""
    text = chars.astype("<u4").tobytes().decode("utf-32-le")
    cuts = [0, *(np.flatnonzero(np.diff(looks)) + 1).tolist(), len(text)]
    return [Segment(text[a:b], styles[looks[a]]) for a, b in pairwise(cuts)]


def fitting_entries(name: str, entries: Sequence[Entry], room: int) -> list[Entry]:
    """Return the entries of a title as they fit into `room` cells beside the name of the plot.

    Without the room, entries are shortened and left out as they say, the last ones first. What is
    still too long is cut by the border.
    """
    found = list(entries)
    length = cell_len(name) + sum(_cells(entry) for entry in found)
    for index in range(len(found) - 1, -1, -1):
        if length <= room:
            break
        entry, brief = found[index], found[index].brief
        if brief is not None:
            found[index] = replace(entry, text=brief)
            length += _cells(found[index]) - _cells(entry)
    return found


def _cells(entry: Entry) -> int:
    return len(_GAP) + cell_len(_worded(entry)) if entry.text else 0


def _worded(entry: Entry) -> str:
    sign = LEGEND_SIGN.get(entry.look, "")
    return f"{sign} {entry.text}" if sign else entry.text


def _assembled(name: str, entries: Sequence[Entry]) -> Content:
    pieces: list[Piece] = [(name, "bold")]
    for entry in entries:
        if entry.text:
            style = _TITLE_STYLE.get(entry.look, f"$plot-{entry.look}") if entry.look else DIM
            pieces += [_GAP, (_worded(entry), style)]
    return assemble(*pieces)
