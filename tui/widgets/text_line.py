"""Text that is only repainted when it changes, and small pieces of it that several widgets need."""

from __future__ import annotations

from textual import events
from textual.content import Content
from textual.widgets import Static

from fttui.engine.protocol.states import RunState

from ..messages import TextLineResized
from ..text.glyphs import STATE_COLOUR, STATE_SHAPE

DIM, BOLD, ACCENT, WATCH, ALARM = "$dim", "bold", "$accent", "$warning", "$error"

Piece = str | tuple[str, str]
"""Text, or text with a style."""


class TextLine(Static):
    """Static text that compares before it repaints."""

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__("", id=id, classes=classes, markup=False)
        self._shown: Content | None = None

    def on_resize(self, event: events.Resize) -> None:
        """Ask for the text to be laid out again."""
        self.post_message(TextLineResized())

    def put(self, content: Content) -> None:
        """Show a text."""
        shown = self._shown
        if shown is None or not content.is_same(shown):
            self._shown = content
            # A layout of the whole screen costs 100 times a repaint: only for another height.
            taller = shown is None or shown.plain.count("\n") != content.plain.count("\n")
            self.update(content, layout=taller)


def assemble(*pieces: Piece) -> Content:
    """Pieces side by side."""
    return Content.assemble(*pieces)


def lines(*rows: Content) -> Content:
    """Rows below each other."""
    return Content("\n").join(rows)


def spread(left: Content, right: Content, width: int) -> Content:
    """Left and right parts of one line; the left one gives way when there is no room."""
    room = width - right.cell_length
    if left.cell_length > room - 1:
        left = left.truncate(max(0, room - 1), ellipsis=True)
    return Content.assemble(left, " " * max(0, room - left.cell_length), right)


def state_text(state: RunState) -> Content:
    """`● RUNNING` in the state's colour."""
    colour = STATE_COLOUR.get(state, "")
    return assemble((f"{STATE_SHAPE[state]} {state.value.upper()}", f"bold {colour}".strip()))


def bar(share: float, width: int) -> Content:
    """A progress bar."""
    share = min(1.0, max(0.0, share))
    done = round(share * width)
    return assemble(("█" * done, ACCENT), ("─" * (width - done), DIM))
