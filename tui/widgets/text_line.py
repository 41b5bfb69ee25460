"""The text widget that repaints only on change, and functions that build styled text for it."""

from __future__ import annotations

from textual import events
from textual.content import Content
from textual.widgets import Static

from fttui.engine.protocol.states import RunState

from ..messages import TextLineResized
from ..text.control_characters import escape_control_characters
from ..text.glyphs import STATE_COLOUR, STATE_SHAPE

DIM, BOLD, ACCENT, WATCH, ALARM = "$dim", "bold", "$accent", "$warning", "$error"

Piece = str | tuple[str, str]
"""Text, or text with a style."""


class TextLine(Static):
    """Static text that repaints only when it differs from the text shown."""

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__("", id=id, classes=classes, markup=False)
        self._shown: Content | None = None

    def on_resize(self, event: events.Resize) -> None:
        """Ask the app for a redraw, since text is laid out for the size of the widget."""
        self.post_message(TextLineResized())

    def put(self, content: Content) -> None:
        """Show a text in place of the one before; an equal text costs nothing."""
        shown = self._shown
        if shown is None or not content.is_same(shown):
            self._shown = content
            # A layout of the whole screen costs 100 repaints, so only a new height asks for one.
            taller = shown is None or shown.plain.count("\n") != content.plain.count("\n")
            self.update(content, layout=taller)
            if shown is None:
                # A widget that was never idle since it was mounted keeps the height of the layout
                # before the text, because Textual takes its request for a new layout as pending.
                self.call_after_refresh(self.refresh, layout=True)


def assemble(*pieces: Piece | Content) -> Content:
    """Return the pieces as one text; control characters in them are shown as escapes."""
    return Content.assemble(*map(_visible, pieces))


def plain(text: str) -> Content:
    """Return a text without a style; control characters in it are shown as escapes."""
    return Content(escape_control_characters(text))


def _visible(piece: Piece | Content) -> Piece | Content:
    if isinstance(piece, Content):
        return piece
    return (
        escape_control_characters(piece)
        if isinstance(piece, str)
        else (escape_control_characters(piece[0]), piece[1])
    )


def lines(*rows: Content) -> Content:
    """Return the rows below each other."""
    return Content("\n").join(rows)


def spread(left: Content, right: Content, width: int) -> Content:
    """Return a line of `width` cells with a left and a right part; a left one too long is cut."""
    room = width - right.cell_length
    if left.cell_length > room - 1:
        left = left.truncate(max(0, room - 1), ellipsis=True)
    return Content.assemble(left, " " * max(0, room - left.cell_length), right)


def state_text(state: RunState) -> Content:
    """Return a run's state such as `● RUNNING`, in its colour."""
    colour = STATE_COLOUR.get(state, "")
    return assemble((f"{STATE_SHAPE[state]} {state.value.upper()}", f"bold {colour}".strip()))


def bar(share: float, width: int) -> Content:
    """Return a progress bar of `width` cells, filled to `share` of 1."""
    share = min(1.0, max(0.0, share))
    done = round(share * width)
    return assemble(("█" * done, ACCENT), ("─" * (width - done), DIM))
