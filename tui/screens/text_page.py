"""A page to read: a report, a sample, the configuration."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from .base import RunScreen


class TextPage(RunScreen):
    """Markdown or plain text, scrolled with the arrows; esc goes back."""

    AUTO_FOCUS = "#text"

    def __init__(self, title: str, text: str, *, markdown: bool = False) -> None:
        super().__init__()
        self._title = title
        self._text = text
        self._markdown = markdown

    def compose_body(self) -> ComposeResult:
        """The page."""
        page = VerticalScroll(id="text", can_focus=True)
        page.border_title = self._title
        with page:
            if self._markdown:
                from textual.widgets import Markdown  # deferred: its parser takes a tenth second

                yield Markdown(self._text, open_links=False)
            else:
                yield Static(Content(self._text), markup=False)
