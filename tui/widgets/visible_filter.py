"""A line filter that lets no control character reach the terminal, whatever widget draws it."""

from __future__ import annotations

from rich.cells import cell_len
from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter

from ..text.control_characters import replace_unsafe


class VisibleFilter(LineFilter):
    """Replaces control and invisible characters in whatever a widget draws.

    It is needed for text that was not made with `assemble` or `plain`, which escape them. A line
    keeps its width.
    """

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """Return the segments with everything invisible replaced by `?`, as wide as it was."""
        if all(s.control or (s.text.isascii() and s.text.isprintable()) for s in segments):
            return segments
        return [
            s if s.control else Segment(replace_unsafe(s.text, _replacement), s.style)
            for s in segments
        ]


def _replacement(char: str) -> str:
    return "?" * cell_len(char)
