"""For terminals that are not UTF-8: everything on the screen in ASCII."""

from __future__ import annotations

from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter

from ..text.glyphs import to_ascii


class AsciiFilter(LineFilter):
    """Replaces what the terminal cannot show, cell for cell."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """The same segments in ASCII."""
        return [Segment(to_ascii(s.text), s.style, s.control) for s in segments]
