"""The confirmation dialog, shown before destructive commands and before control is taken over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.content import Content
from textual.widgets import Static

from ...widgets.text_line import ACCENT, ALARM, BOLD, DIM, Piece, assemble, lines, plain
from .modal import Modal


class ConfirmScreen(Modal[str]):
    """Describes what will happen; the result is the key of the answer, empty or None for no."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,n,q", "answer('')", "no"),
        Binding("enter", "answer('y')", "yes"),
    ]

    def __init__(
        self,
        title: str,
        body: Sequence[str],
        answers: Sequence[tuple[str, str]],
        *,
        alarm: bool = False,
    ) -> None:
        """Build the dialog.

        `answers` are pairs of key and label; the first key must be `y`, and enter means it too.
        With `alarm`, the dialog has the colour of alarms.
        """
        super().__init__()
        self._title = title
        self._body = body
        self._answers = answers
        self._alarm = alarm
        for key, words in answers:
            self._bindings.bind(key, f"answer('{key}')", words)

    def compose(self) -> ComposeResult:
        """Compose the question and the answers."""
        dialog = Container(id="dialog", classes="-alarm" if self._alarm else "")
        dialog.border_title = self._title
        with dialog:
            rows = [assemble((self._body[0], BOLD)), *(plain(row) for row in self._body[1:])]
            yield Static(lines(*rows), markup=False)
            yield Static(self._keys(), id="answers", markup=False)

    def _keys(self) -> Content:
        colour = f"{BOLD} {ALARM if self._alarm else ACCENT}"
        pieces: list[Piece] = []
        for key, words in self._answers:
            pieces += [(key, colour), f" {words}   "]
        return assemble(*pieces, ("esc", BOLD), (" no", DIM))

    def action_answer(self, key: str) -> None:
        """Close the dialog with the pressed key as the answer."""
        self.dismiss(key)
