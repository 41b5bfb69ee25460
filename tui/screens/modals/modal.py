"""Dialogs that close once, however fast keys follow each other."""

from __future__ import annotations

from typing import TypeVar, cast

from textual.await_complete import AwaitComplete
from textual.command import CommandPalette
from textual.screen import ModalScreen

from ...app_base import AppBase
from ...widgets.status_panels import MIN_HEIGHT, MIN_WIDTH, TooSmall

_Answer = TypeVar("_Answer")


class Modal(ModalScreen[_Answer]):
    """A dialog. A key typed before it has gone may arrive after it was closed."""

    HORIZONTAL_BREAKPOINTS = [(0, "-tiny"), (MIN_WIDTH, "-wide-enough")]  # noqa: RUF012 - as Textual declares it
    VERTICAL_BREAKPOINTS = [(0, "-flat"), (MIN_HEIGHT, "-short"), (24, "-tall")]  # noqa: RUF012 - as above

    def on_mount(self) -> None:
        """Be ready to stand back."""
        self.mount(TooSmall())

    def on_resize(self) -> None:
        """What it takes to read the question."""
        state = cast(AppBase, self.app).state
        for page in self.query(TooSmall):
            page.show(state, *self.app.size)

    @property
    def readable(self) -> bool:
        """There is room for the question."""
        width, height = self.app.size
        return width >= MIN_WIDTH and height >= MIN_HEIGHT

    def dismiss(self, result: _Answer | None = None) -> AwaitComplete:
        """Close with an answer, unless it is closed; to what cannot be read nobody agrees."""
        if not self.is_active:
            return AwaitComplete()
        return super().dismiss(result if self.readable else None)


class Palette(CommandPalette):
    """The command palette, likewise."""

    def dismiss(self, result: None = None) -> AwaitComplete:
        """Close, unless it is closed already."""
        return super().dismiss(result) if self.is_active else AwaitComplete()
