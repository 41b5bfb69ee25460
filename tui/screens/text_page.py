"""A scrollable page of text, for anomaly reports, samples, data findings and data records."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from ..text.control_characters import escape_control_characters
from ..widgets.text_line import plain
from .base import RunScreen


class TextPage(RunScreen):
    """Shows Markdown or plain text; the arrows scroll, esc goes back."""

    AUTO_FOCUS = "#text"
    MODE = "page"

    def __init__(self, title: str, text: str | Content, *, markdown: bool = False) -> None:
        super().__init__()
        self._title = title
        self._text = text
        self._markdown = markdown

    def text_to_copy(self) -> str:
        """Return the text of the page without styles; Markdown as it is written."""
        text = self._text if isinstance(self._text, str) else self._text.plain
        return escape_control_characters(text)

    def compose_body(self) -> ComposeResult:
        """Compose the scrollable text of the page."""
        page = VerticalScroll(id="text", can_focus=True)
        page.border_title = self._title
        with page:
            if self._markdown and isinstance(self._text, str):
                from textual.widgets import Markdown  # deferred: importing its parser takes 0.1 s

                yield Markdown(escape_control_characters(self._text), open_links=False)
            else:
                text = plain(self._text) if isinstance(self._text, str) else self._text
                yield Static(text, markup=False)
