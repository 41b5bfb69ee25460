"""Dialogs that close once, however fast keys follow each other."""

from __future__ import annotations

from typing import TypeVar

from textual.await_complete import AwaitComplete
from textual.command import CommandPalette
from textual.screen import ModalScreen

_Answer = TypeVar("_Answer")


class Modal(ModalScreen[_Answer]):
    """A dialog. A key typed before it has gone may arrive after it was closed."""

    def dismiss(self, result: _Answer | None = None) -> AwaitComplete:
        """Close with an answer, unless it is closed already."""
        return super().dismiss(result) if self.is_active else AwaitComplete()


class Palette(CommandPalette):
    """The command palette, likewise."""

    def dismiss(self, result: None = None) -> AwaitComplete:
        """Close, unless it is closed already."""
        return super().dismiss(result) if self.is_active else AwaitComplete()
