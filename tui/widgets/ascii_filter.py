"""A line filter that draws the whole screen in ASCII, for terminals without UTF-8."""

from __future__ import annotations

from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter

from ..text.glyphs import to_ascii


class AsciiFilter(LineFilter):
    """Replaces every non-ASCII character by as many ASCII ones as it takes cells."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """Return the segments in ASCII."""
        return [Segment(to_ascii(s.text), s.style, s.control) for s in segments]
