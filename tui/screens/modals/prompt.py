"""The prompt: one line of input above the footer, with a preview of what enter would do."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.widgets import Input

from ...dialogs.prompts import ParsedInput
from ...widgets.text_line import TextLine, plain
from .modal import Modal


class PromptScreen(Modal[ParsedInput]):
    """Asks for one line of input; the result is the parsed input, None when cancelled."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss", "cancel")]

    def __init__(
        self, title: str, forms: str, read: Callable[[str], ParsedInput], start: str = ""
    ) -> None:
        """Build the prompt.

        `forms` are examples of valid input, `read` parses the text on every change, and `start` is
        the initial text.
        """
        super().__init__()
        self._title = title
        self._forms = forms
        self._read = read
        self._start = start

    def compose(self) -> ComposeResult:
        """Compose the input line and the preview below it."""
        ask = Container(id="ask")
        ask.border_title = self._title
        ask.border_subtitle = "⏎ send   esc cancel"
        with ask:
            yield Input(self._start, placeholder=self._forms, compact=True, select_on_focus=False)
            yield TextLine(id="preview")

    def on_mount(self) -> None:
        """Show the preview of the initial text; of an empty text it can be the current value."""
        self.query_one(Input).cursor_blink = not self.app.is_headless
        self._preview(self._read(self._start))

    @on(Input.Changed)
    def preview(self, event: Input.Changed) -> None:
        """Show below the input what the typed text would do, or why it cannot be read."""
        self._preview(self._read(event.value))

    @on(Input.Submitted)
    def send(self, event: Input.Submitted) -> None:
        """Close with the parsed input; an error keeps the prompt open.

        Empty input keeps it open if the prompt needs a text, and cancels it otherwise.
        """
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
        line.put(plain(asked.error or asked.preview).truncate(room, ellipsis=True))
