"""The base of the dialogs that ask for an answer, and the command palette; both close once only."""

from __future__ import annotations

from typing import TypeVar, cast

from textual.await_complete import AwaitComplete
from textual.command import CommandPalette, SearchIcon
from textual.screen import ModalScreen

from ...app_base import AppBase
from ...widgets.status_panels import MIN_HEIGHT, MIN_WIDTH, TooSmall

_Answer = TypeVar("_Answer")


class Modal(ModalScreen[_Answer]):
    """A dialog that ignores keys arriving after it was closed."""

    HORIZONTAL_BREAKPOINTS = [(0, "-tiny"), (MIN_WIDTH, "-wide-enough")]  # noqa: RUF012 - as Textual declares it
    VERTICAL_BREAKPOINTS = [(0, "-flat"), (MIN_HEIGHT, "-short"), (24, "-tall")]  # noqa: RUF012 - as above

    def on_mount(self) -> None:
        """Add the notice for a too small terminal."""
        self.mount(TooSmall())

    def on_resize(self) -> None:
        """Update the notice for a too small terminal."""
        for page in self.query(TooSmall):
            page.show(cast(AppBase, self.app).state, *self.app.size)

    @property
    def readable(self) -> bool:
        """Whether the terminal is large enough to show the dialog."""
        width, height = self.app.size
        return width >= MIN_WIDTH and height >= MIN_HEIGHT

    def dismiss(self, result: _Answer | None = None) -> AwaitComplete:
        """Close with an answer, or with None if the terminal is too small to read the dialog.

        A dialog that is closed already is left alone.
        """
        if not self.is_active:
            return AwaitComplete()
        return super().dismiss(result if self.readable else None)


class Palette(CommandPalette):
    """The command palette, which ignores keys arriving after it was closed."""

    def on_mount(self) -> None:
        """Mark the input by a sign that every terminal has; Textual's is an emoji."""
        self.query_one(SearchIcon).icon = ">"

    def dismiss(self, result: None = None) -> AwaitComplete:
        """Close the palette, unless it was closed before."""
        return super().dismiss(result) if self.is_active else AwaitComplete()
