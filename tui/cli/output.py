"""The streams of the commands: every text is made visible on its way to the terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

from ..text.visible import visible


class VisibleStream:
    """A text stream that writes only what is visible; all else is that of the stream below."""

    def __init__(self, stream: TextIO) -> None:
        self.styled = stream
        """The stream below, for a text that is styled and was made visible before."""

    def write(self, text: str) -> int:
        """Write a text after `visible`."""
        self.styled.write(visible(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write texts one after the other."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.styled, name)


@contextmanager
def visible_output() -> Iterator[None]:
    """Make everything that is printed in the block visible, by whatever module it is printed.

    The app is not touched: it draws on the streams that Python opened first.
    """
    before = sys.stdout, sys.stderr
    sys.stdout = cast(TextIO, VisibleStream(before[0]))
    sys.stderr = cast(TextIO, VisibleStream(before[1]))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def styled(stream: TextIO) -> TextIO:
    """Return the stream for a styled text, whose pieces must have passed `visible`."""
    return cast(TextIO, getattr(stream, "styled", stream))
