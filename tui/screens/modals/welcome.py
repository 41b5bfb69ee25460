"""The first minute: what this is, what to press, and that nothing here can be broken by leaving."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from ...actions import ACTION_OF, key_of
from ...view_model.app_state import AppState
from ...widgets.text_line import ACCENT, BOLD, DIM, assemble, lines

FIRST_KEYS = ("app.help", "app.commands", "run.pause", "lr.change", "run.rollback", "app.detach")


class WelcomeScreen(ModalScreen[None]):
    """Shown once per machine; any of its keys closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,enter,space,q", "dismiss", "go on")]

    def __init__(self, state: AppState) -> None:
        super().__init__()
        self._state = state

    def compose(self) -> ComposeResult:
        """A few lines."""
        dialog = Container(id="dialog")
        dialog.border_title = "fttui"
        dialog.border_subtitle = "⏎ go on"
        with dialog:
            yield Static(lines(*self._rows()), markup=False)

    def _rows(self) -> list[Content]:
        rows = [
            assemble(("You watch a training run, and you can change it while it trains.", BOLD)),
            Content("Every key that changes something says what it did, at which step, old → new."),
            Content(""),
        ]
        for id_ in FIRST_KEYS:
            key = key_of(id_, self._state)
            rows.append(assemble((f"  {key:<8}", ACCENT), ACTION_OF[id_].help))
        rows += [Content(""), assemble(("Leaving, or losing the connection, never stops it.", DIM))]
        return rows
