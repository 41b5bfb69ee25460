"""One line to type in, above the footer, that says before Enter what it would do."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.content import Content
from textual.widgets import Input

from ...dialogs.prompts import ParsedInput
from ...widgets.text_line import TextLine
from .modal import Modal


class PromptScreen(Modal[ParsedInput]):
    """Answers with what was asked for; None when it was closed."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss", "cancel")]

    def __init__(
        self, title: str, forms: str, read: Callable[[str], ParsedInput], start: str = ""
    ) -> None:
        """Ask; `read` is called on every change of the text, which begins as `start`."""
        super().__init__()
        self._title = title
        self._forms = forms
        self._read = read
        self._start = start

    def compose(self) -> ComposeResult:
        """Input and preview."""
        ask = Container(id="ask")
        ask.border_title = self._title
        ask.border_subtitle = "⏎ send   esc cancel"
        with ask:
            yield Input(self._start, placeholder=self._forms, compact=True, select_on_focus=False)
            yield TextLine(id="preview")

    def on_mount(self) -> None:
        """Say what is in force now."""
        self.query_one(Input).cursor_blink = not self.app.is_headless
        self._preview(self._read(self._start))

    @on(Input.Changed)
    def preview(self, event: Input.Changed) -> None:
        """Say what the text would do."""
        self._preview(self._read(event.value))

    @on(Input.Submitted)
    def send(self, event: Input.Submitted) -> None:
        """Close with a command; an error, or nothing where something is needed, keeps it open."""
        asked = self._read(event.value)
        if any(answer is not None for answer in (asked.command, asked.goto, asked.text)):
            self.dismiss(asked)
        elif asked.error or asked.needs:
            self._preview(ParsedInput(error=asked.error or asked.needs))
        else:
            self.dismiss(None)

    def _preview(self, asked: ParsedInput) -> None:
        line = self.query_one("#preview", TextLine)
        line.set_class(bool(asked.error), "-error")
        room = line.content_size.width or self.app.size.width
        line.put(Content(asked.error or asked.preview).truncate(room, ellipsis=True))
