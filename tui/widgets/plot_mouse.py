"""The mouse on a plot: a click points at a step, a drag selects a span, the wheel zooms."""

from __future__ import annotations

from dataclasses import dataclass

from rich.style import Style
from textual import events
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from ..plot.frame import GUTTER

LEAST = 2
"""Least number of columns between the ends of a drag; a shorter one is a click."""


class PlotMouse(Widget):
    """The part of a plot that follows the mouse; the plot says which step a column stands for."""

    @dataclass
    class Pointed(Message):
        """The mouse was clicked in a column of the canvas."""

        step: int
        steps: tuple[int, int]
        """The first and the last step that the column stands for."""
        on_axis: bool
        """Whether the click was on the axis below the canvas, where events have their signs."""

    @dataclass
    class Spanned(Message):
        """A span of steps was selected by dragging."""

        first: int
        last: int

    @dataclass
    class Wheeled(Message):
        """The wheel was turned above a step."""

        step: int
        inwards: bool

    _from: int | None = None
    _to = 0
    _dragged = False

    @property
    def columns(self) -> int:
        """Width of the canvas in cells."""
        raise NotImplementedError

    @property
    def lines(self) -> int:
        """Height of the canvas in cells."""
        raise NotImplementedError

    def step_at(self, column: float) -> int | None:
        """Return the step at a column of the canvas; None while nothing is drawn."""
        raise NotImplementedError

    def _column(self, event: events.MouseEvent) -> int:
        return event.get_content_offset_capture(self).x - GUTTER

    def on_mouse_down(self, event: events.MouseDown) -> None:
        """Begin a selection, if the button was pressed on the canvas."""
        column = self._column(event)
        self._dragged = False
        if event.button == 1 and 0 <= column < self.columns:
            self._from = self._to = column
            self.capture_mouse()

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """Show the selection as far as the mouse has been dragged."""
        if self._from is None:
            return
        reached = min(max(self._column(event), 0), self.columns - 1)
        if reached != self._to:
            self._to = reached
            self.refresh()

    def on_mouse_up(self, event: events.MouseUp) -> None:
        """End a selection, and post it if it is wide enough."""
        if self._from is None:
            return
        first, last = sorted((self._from, self._to))
        self._from = None
        self.release_mouse()
        self._dragged = last - first >= LEAST
        if self._dragged:
            self.refresh()
            ends = self.step_at(first), self.step_at(last + 1)
            if ends[0] is not None and ends[1] is not None and ends[0] < ends[1]:
                self.post_message(self.Spanned(ends[0], ends[1]))

    def on_click(self, event: events.Click) -> None:
        """Post the step that was clicked, if the click was not a drag and on the canvas."""
        column = self._column(event)
        step = self.step_at(column + 0.5)
        if self._dragged or step is None or not 0 <= column < self.columns:
            return
        first, last = self.step_at(column), self.step_at(column + 1)
        steps = (step if first is None else first, step if last is None else last)
        on_axis = event.get_content_offset_capture(self).y == self.lines
        self.post_message(self.Pointed(step, steps, on_axis))

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """Zoom in where nothing scrolls, or with ctrl."""
        self._wheel(event, inwards=True)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """Zoom out where nothing scrolls, or with ctrl."""
        self._wheel(event, inwards=False)

    def _wheel(self, event: events.MouseEvent, *, inwards: bool) -> None:
        scrolls = any(isinstance(w, Widget) and w.allow_vertical_scroll for w in self.ancestors)
        step = self.step_at(self._column(event) + 0.5)
        if step is not None and (event.ctrl or not scrolls):
            event.stop()
            self.post_message(self.Wheeled(step, inwards))

    def selected(self, strip: Strip) -> Strip:
        """Return a line of the plot with the columns of the selection in reverse."""
        if self._from is None or abs(self._to - self._from) < LEAST:
            return strip
        first, last = sorted((GUTTER + self._from, GUTTER + self._to + 1))
        chosen = strip.crop(first, last).apply_style(Style(reverse=True))
        return Strip.join([strip.crop(0, first), chosen, strip.crop(last)])
