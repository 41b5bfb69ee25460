"""The confirmation dialog, shown before destructive commands and before control is taken over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.content import Content
from textual.widgets import Static

from fttui.engine.protocol.commands import AnyCommand, describe_command

from ...app_base import AppBase
from ...dialogs.command_text import gives_up, name_of, slip_of
from ...widgets.text_line import ACCENT, ALARM, BOLD, DIM, Piece, assemble, lines, plain
from .modal import Modal


def confirm(app: AppBase, command: AnyCommand, rows: Sequence[str], reason: str = "") -> None:
    """Ask for confirmation in a dialog titled with the command's name, then send the command."""

    def answer(key: str | None) -> None:
        if key == "y":
            app.send(command, reason=reason)

    name = name_of(command)
    rows = [describe_command(command), *rows]
    app.push_screen(ConfirmScreen(name, rows, [("y", name)], alarm=gives_up(command)), answer)


def send_typed(app: AppBase, command: AnyCommand, *, guarded: bool = False) -> None:
    """Send a typed command; one that looks like a typing error is confirmed first.

    With `guarded` it is rejected if the run's settings were changed after the newest heartbeat.
    """
    why = slip_of(app.state.run, command)
    if why is None:
        app.send(command, guarded=guarded)
        return

    def answer(key: str | None) -> None:
        if key == "y":
            app.send(command, guarded=guarded)

    name = name_of(command)
    rows = [describe_command(command), f"{why[0].upper()}{why[1:]}.", "Is that what you mean?"]
    app.push_screen(ConfirmScreen(name, rows, [("y", name)], alarm=True), answer)


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
