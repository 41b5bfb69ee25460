"""The plot widget: title, axes and event marks around curves drawn as dots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Self

import numpy as np
from numpy.typing import NDArray
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.content import Content
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
LEGEND_SIGN = {"raw": "─", "live": "─", "ema": "━", "eval": "●", "clip": "┄"}
"""The sign before an entry of the title that is the legend of a curve."""
_TITLE_STYLE = {"raw": "$plot-live"}
"""Styles of legends whose curve is too pale for text."""
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
        return max(1, self.content_size.height - BELOW)

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
        self._title(
            fitting_title(self.panel, state, self.outer_size.width - _TITLE_ROOM),
            self.panel.subtitle(state),
        )
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
        before = self._strips
        width, height = self.content_size
        sheet = self._sheet
        if sheet is None:
            why = self.panel.empty if self._picture.empty else "not enough height to draw"
            hint = Segment(why.center(width), self._looks["axis"])
            above = [Strip.blank(width, self._looks["axis"])] * (height // 2)
            self._strips = [*above, Strip([hint])]
        else:
            styles = [self._looks[look] for look in LOOKS]
            shade = Style(bgcolor=self._looks[UNDONE].bgcolor)
            styles += [style + shade for style in styles]
            blank = self._looks["axis"]
            self._strips = [
                Strip(_segments(chars, looks, styles)).adjust_cell_length(width, blank)
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
            return self.selected(self._strips[y])
        return Strip.blank(self.content_size.width, self._looks.get("axis", _BLANK))

    def notify_style_update(self) -> None:
        """Look the styles up again and repaint, after a change of theme."""
        super().notify_style_update()
        self._looks = {}
        if self._strips:
            self._paint()


def _segments(
    chars: NDArray[np.uint32], looks: NDArray[np.int16], styles: Sequence[Style]
) -> list[Segment]:
    """Return a line's cells as segments, one per run of cells in the same style."""
    text = chars.astype("<u4").tobytes().decode("utf-32-le")
    cuts = [0, *(np.flatnonzero(np.diff(looks)) + 1).tolist(), len(text)]
    return [Segment(text[a:b], styles[looks[a]]) for a, b in pairwise(cuts)]


def fitting_title(panel: Panel, state: AppState, room: int) -> Content:
    """Return the title of a plot within `room` cells: its name, and the legends of its curves.

    Without the room, entries are shortened or left out as their `brief` says, the last one first. A
    title that is too long even then is returned as it is.
    """
    name, entries = panel.name_in(state), panel.entries(state)
    title = _assembled(name, entries)
    for shortened in range(len(entries) - 1, -1, -1):
        if title.cell_length <= room:
            break
        brief = entries[shortened].brief
        if brief is not None:
            entries[shortened] = replace(entries[shortened], text=brief)
            title = _assembled(name, entries)
    return title


def _assembled(name: str, entries: Sequence[Entry]) -> Content:
    pieces: list[Piece] = [(name, "bold")]
    for entry in entries:
        if entry.text:
            sign = LEGEND_SIGN.get(entry.look, "")
            text = f"{sign} {entry.text}" if sign else entry.text
            style = _TITLE_STYLE.get(entry.look, f"$plot-{entry.look}") if entry.look else DIM
            pieces += ["  ", (text, style)]
    return assemble(*pieces)
