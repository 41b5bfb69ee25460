"""The prompt: one line of input above the footer, with a preview of what enter would do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.widgets import Input

from ...dialogs.completion import completed
from ...dialogs.prompts import ParsedInput
from ...widgets.text_line import TextLine, plain
from .modal import Modal


class PromptScreen(Modal[ParsedInput]):
    """Asks for one line of input; the result is the parsed input, None when cancelled."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss", "cancel"),
        Binding("tab", "complete", "complete", priority=True),
    ]

    def __init__(
        self,
        title: str,
        forms: str,
        read: Callable[[str], ParsedInput],
        start: str = "",
        *,
        complete: Callable[[str], Sequence[str]] = lambda _: (),
    ) -> None:
        """Build the prompt.

        `forms` are examples of valid input, `read` parses the text on every change, `start` is the
        initial text, and `complete` returns the texts that a text can be continued to.
        """
        super().__init__()
        self._complete = complete
        self._offered: Sequence[str] = ()
        """The completions that further presses of tab go through."""
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
            shown = f"such as: {self._forms}"
            yield Input(self._start, placeholder=shown, compact=True, select_on_focus=False)
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

    def action_complete(self) -> None:
        """Continue the typed text as far as all completions agree; further presses try each."""
        field = self.query_one(Input)
        if field.value in self._offered:
            at = self._offered.index(field.value) + 1
            chosen = self._offered[at % len(self._offered)]
        else:
            self._offered = self._complete(field.value)
            chosen = completed(field.value, self._offered)
            if chosen == field.value and self._offered:
                chosen = self._offered[0]
        field.value = chosen
        field.cursor_position = len(chosen)
        if len(self._offered) > 1:
            rest = "  ".join(text.rpartition(" ")[2] for text in self._offered)
            self.call_after_refresh(self._preview, ParsedInput(preview=rest))

    def _preview(self, asked: ParsedInput) -> None:
        line = self.query_one("#preview", TextLine)
        line.set_class(bool(asked.error), "-error")
        room = line.content_size.width or self.app.size.width
        line.put(plain(asked.error or asked.preview or asked.needs).truncate(room, ellipsis=True))
