"""The output streams of the commands; they escape control characters in every text."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

from ..text.control_characters import escape_control_characters


class EscapingStream:
    """A text stream that escapes control characters and passes everything on to another stream."""

    def __init__(self, stream: TextIO) -> None:
        self.styled = stream
        """The underlying stream, for styled text whose own control characters are escaped."""

    def write(self, text: str) -> int:
        """Write a text with its control characters escaped."""
        self.styled.write(escape_control_characters(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write texts one after the other."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.styled, name)


@contextmanager
def escaped_output() -> Iterator[None]:
    """Escape control characters in all that is printed within the block, by any module.

    The app is not affected: it draws on the streams that Python opened first.
    """
    before = sys.stdout, sys.stderr
    sys.stdout = cast(TextIO, EscapingStream(before[0]))
    sys.stderr = cast(TextIO, EscapingStream(before[1]))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def styled(stream: TextIO) -> TextIO:
    """Return the stream below an `EscapingStream`, or the stream itself if it is none.

    It is for styled text, whose own control characters the caller has escaped.
    """
    return cast(TextIO, getattr(stream, "styled", stream))
