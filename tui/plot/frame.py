"""Draw what surrounds the curves of a plot: axes, marks of events, the cursor, undone steps.

A framed sheet has a gutter for the labels of the y axis on the left, and two rows beneath the
curves: the x axis with the marks of events, and its labels.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..text import format as fmt
from ..view_model.app_state import AppState
from ..view_model.axis import Axis, place_of, place_of_mark
from . import raster
from .layers import PlotPicture, SignPlace, UndoneSpan, column_of
from .panels import Panel
from .ticks import axis_label, axis_ticks, log_ticks, ticks

GUTTER = 8
"""Cells to the left of the canvas, for axis labels and the axis."""
BELOW = 2
"""Rows below the canvas, for the x axis and its labels."""
LOOKS = (
    "axis", "mark", "alarm", "watch", "cursor", "raw", "ema", "live", "eval", "clip", "old",
    "gone", "band", "held", "kept", "limit", "run1", "run2", "run3", "run4",
)  # fmt: skip
"""The looks of cells. The index of a look plus `len(LOOKS)` is that look on a shaded span."""
MARK_SHAPE = {
    "info": "·", "command": "┴", "checkpoint": "◆", "verdict": "✓", "note": "✎", "rollback": "↺",
    "watch": "△", "alarm": "▲",
}  # fmt: skip
"""Signs of events on the x axis, in ascending priority: later kinds are drawn over earlier ones."""
_MARK_RANK = {kind: rank for rank, kind in enumerate(MARK_SHAPE)}
_GONE = "gone"
"""The look of the signs of abandoned steps."""
_AXIS_NAMES: dict[Axis, str] = {
    "step": "step",
    "time": "time",
    "tokens": "tokens",
    "epoch": "epoch",
}
_KNEE = "┄"


@dataclass(frozen=True)
class Sign:
    """The sign of an event on the x axis, at a place that says whether its step is live."""

    place: SignPlace
    kind: str

    @property
    def rank(self) -> tuple[bool, int]:
        """Its priority: of several signs in a column, the one with the largest rank is shown.

        A sign of a live step has a larger rank than one of an abandoned step.
        """
        return self.place.live, _MARK_RANK[self.kind]


def signs_of(state: AppState) -> list[Sign]:
    """Return the signs to draw, those of higher priority last.

    Signs of abandoned steps are among them only if the view shows these steps.
    """
    run, axis = state.run, state.plot.axis
    live = set(map(id, run.live_marks()))
    found = [
        Sign(SignPlace(place_of_mark(run.branches, axis, mark), id(mark) in live), mark.kind)
        for mark in run.marks
        if mark.kind in MARK_SHAPE and (state.plot.undone or id(mark) in live)
    ]
    return sorted(found, key=lambda sign: sign.rank)


def framed(canvas: raster.Sheet, drawn: PlotPicture, state: AppState, panel: Panel) -> raster.Sheet:
    """Return a canvas `[lines, columns]` with its frame; its layers become numbers of `LOOKS`."""
    return _Frame(canvas, drawn).around(state, panel)


class _Frame:
    def __init__(self, canvas: raster.Sheet, drawn: PlotPicture) -> None:
        self._drawn = drawn
        self._lines, self._columns = (int(amount) for amount in canvas.chars.shape)
        sheet = raster.blank(GUTTER + self._columns, self._lines + BELOW)
        looks = np.array([LOOKS.index(layer.style) for layer in drawn.layers] + [0])
        sheet.layers[:] = 0
        sheet.chars[:-BELOW, GUTTER:] = canvas.chars
        sheet.layers[:-BELOW, GUTTER:] = looks[canvas.layers]
        self._sheet = sheet

    def around(self, state: AppState, panel: Panel) -> raster.Sheet:
        """Draw everything around the curves and over them; return the whole sheet."""
        self._knee()
        self._cursor(state)
        self._put_all(0, "↑", self._drawn.over)
        self._put_all(self._lines - 1, "✗", self._drawn.gaps)
        self._marks()
        self._y_axis(panel)
        self._x_axis(signs_of(state))
        self._x_labels(state)
        for span in self._drawn.undone:
            self._shade(span)
        return self._sheet

    def _column(self, x: float) -> int:
        return GUTTER + column_of(x, self._drawn.x, self._columns)

    def _row(self, share: float) -> int:
        return self._lines - 1 - column_of(share, (0.0, 1.0), self._lines)

    def _in_view(self, x: float) -> bool:
        return self._drawn.x[0] <= x <= self._drawn.x[1]

    def _put(self, row: int, x: float, sign: str, look: str) -> None:
        column = self._column(x)
        self._sheet.chars[row, column] = ord(sign)
        self._sheet.layers[row, column] = LOOKS.index(look)

    def _put_all(self, row: int, sign: str, at: Iterable[SignPlace]) -> None:
        for place in sorted(at, key=lambda place: place.live):
            self._put(row, place.x, sign, "alarm" if place.live else _GONE)

    def _marks(self) -> None:
        """Draw the signs of curves at their newest points, or at the edge of the plot."""
        for mark in self._drawn.marks:
            x, y = mark.point
            share = float(np.clip(self._drawn.scale.shares([y])[0], 0.0, 1.0))
            self._put(self._row(share), x, mark.sign, mark.style)

    def _knee(self) -> None:
        """Draw the line at which the main range of the y axis ends, if a band begins there."""
        scale = self._drawn.scale
        if scale.top is not None:
            self._fill(self._row(scale.main_share), slice(GUTTER, None), _KNEE, "axis")

    def _fill(self, rows: int | slice, columns: int | slice, sign: str, look: str) -> None:
        chars, layers = self._sheet.chars[rows, columns], self._sheet.layers[rows, columns]
        free = chars == raster.BLANK
        chars[free] = ord(sign)
        layers[free] = LOOKS.index(look)

    def _cursor(self, state: AppState) -> None:
        step = state.plot.cursor
        at = None if step is None else place_of(state.run.branches, state.plot.axis, step)
        if at is not None and self._in_view(at):
            self._fill(slice(0, self._lines), self._column(at), "│", "cursor")

    def _y_axis(self, panel: Panel) -> None:
        self._sheet.chars[: self._lines, GUTTER - 1] = ord("│")
        for share, text in y_labels(panel, self._drawn, min(6, max(2, self._lines // 2))):
            self._label(self._row(share), text)

    def _label(self, row: int, text: str) -> None:
        self._write(row, 0, f"{text[: GUTTER - 2]:>{GUTTER - 2}} ┤")

    def _x_axis(self, signs: Sequence[Sign]) -> None:
        """Draw the x axis and the events on it; of several in a column, the most important one."""
        tag = "log" if self._drawn.scale.log else ""
        self._write(self._lines, 0, f"{tag:>{GUTTER - 2}} └" + "─" * self._columns)
        for sign in signs:
            if self._in_view(sign.place.x):
                look = sign.kind if sign.kind in ("alarm", "watch") else "mark"
                shown = look if sign.place.live else _GONE
                self._put(self._lines, sign.place.x, MARK_SHAPE[sign.kind], shown)

    def _x_labels(self, state: AppState) -> None:
        row = self._lines + 1
        self._write(row, 0, f"{_AXIS_NAMES[state.plot.axis]:>{GUTTER - 2}}")
        free = 0
        for place, label in x_labels(self._drawn, state, self._columns // 14):
            at = column_of(place, self._drawn.x, self._columns) - len(label) // 2
            at = GUTTER + min(max(at, 0), self._columns - len(label))
            if at >= max(free, GUTTER):
                self._write(row, at, label)
                free = at + len(label) + 2

    def _shade(self, span: UndoneSpan) -> None:
        """Shade the columns of abandoned steps and name these steps where there is room."""
        left, right = self._column(span.left), self._column(span.right)
        self._name(span, left, right)
        shaded = self._sheet.layers[: self._lines, left : right + 1]
        shaded[shaded < len(LOOKS)] += len(LOOKS)

    def _name(self, span: UndoneSpan, left: int, right: int) -> None:
        """Write which steps were abandoned, on free cells of their span or beside it.

        Nothing is written if no row has room for it.
        """
        steps = f"{fmt.count(span.first)}–{fmt.count(span.last)}"
        for text in (f"{steps} undone", "undone"):
            middle = (left + right + 1 - len(text)) // 2
            last = GUTTER + self._columns - len(text)
            for row in range(1, self._lines):
                for at in (middle, right + 1 - len(text), left + 2):
                    cells = self._sheet.chars[row, at : at + len(text)]
                    if GUTTER <= at <= last and (cells == raster.BLANK).all():
                        self._write(row, at, text)
                        self._sheet.layers[row, at : at + len(text)] = LOOKS.index(_GONE)
                        return

    def _write(self, row: int, column: int, text: str) -> None:
        room = self._sheet.chars.shape[1] - column
        self._sheet.chars[row, column : column + len(text)] = [ord(char) for char in text[:room]]


def y_labels(panel: Panel, drawn: PlotPicture, most: int) -> list[tuple[float, str]]:
    """Return the labels of the y axis with their places as shares of its height, about `most`."""
    scale, unit = drawn.scale, panel.unit
    if scale.log:
        values = log_ticks(scale.low, scale.high, most)
    else:
        values = [value * unit for value in ticks(scale.low / unit, scale.high / unit, most)]
    places = scale.shares([10**value if scale.log else value for value in values]).tolist()
    found = [
        (place, _label(panel, value, drawn)) for place, value in zip(places, values, strict=True)
    ]
    if scale.top is not None:
        found.append((1.0, _fitted(panel, scale.top, scale.top - scale.low)))
    return found


def x_labels(drawn: PlotPicture, state: AppState, most: int) -> Iterator[tuple[float, str]]:
    """Yield about `most` labels of the x axis with their places on it, from left to right."""
    axis, (first, last) = state.plot.axis, drawn.x
    origin = (state.run.started_at or first) if axis == "time" else 0.0
    for value in axis_ticks(axis, first - origin, last - origin, most):
        yield value + origin, axis_label(axis, value)


def _label(panel: Panel, value: float, drawn: PlotPicture) -> str:
    scale = drawn.scale
    if scale.log:
        return _fitted(panel, 10**value, 10**scale.high)
    return _fitted(panel, value, scale.high - scale.low)


def _fitted(panel: Panel, value: float, span: float) -> str:
    """Return a label that fits into the gutter."""
    text = panel.label(value) if panel.label else fmt.tick(value, span)
    if len(text) <= GUTTER - 2:
        return text
    short = fmt.short_count(value)
    return short if len(short) <= GUTTER - 2 else fmt.scientific(value, 0)
