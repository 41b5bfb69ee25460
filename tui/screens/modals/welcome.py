"""The welcome dialog of the first start: what the app does and the most important keys."""

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
    """Explains the app, once per machine; enter, space, esc and q close it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,enter,space,q", "dismiss", "close")]

    def __init__(self, state: AppState) -> None:
        super().__init__()
        self._state = state

    def compose(self) -> ComposeResult:
        """Compose the text of the welcome dialog."""
        dialog = Container(id="dialog")
        dialog.border_title = "fttui"
        dialog.border_subtitle = "⏎ close"
        with dialog:
            yield Static(lines(*self._rows()), markup=False)

    def _rows(self) -> list[Content]:
        rows = [
            assemble(("Watch a training run, and control it while it trains.", BOLD)),
            Content("Every change shows the step at which it took effect, old → new."),
            Content(""),
        ]
        for id_ in FIRST_KEYS:
            key = key_of(id_, self._state)
            rows.append(assemble((f"  {key:<8}", ACCENT), ACTION_OF[id_].help))
        last = "Training continues when you leave the app or lose the connection."
        rows += [Content(""), assemble((last, DIM))]
        return rows
