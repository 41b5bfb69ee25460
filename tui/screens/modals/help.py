"""The help dialog: all keys, generated from the action table."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from ...actions import Action, why_not
from ...view_model.app_state import AppState
from ...widgets.text_line import ACCENT, BOLD, DIM, WATCH, assemble, lines

SIGNS = (
    "◆ checkpoint · ↺ rollback · ▲ alarm · △ watch · ✓ verdict · ✎ note · ┴ command · ✗ NaN or ∞ · "
    "↑ above the plot"
)


class HelpScreen(ModalScreen[None]):
    """Lists the keys by group; a command that is not possible now says why."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,question_mark,q,enter", "dismiss", "close")
    ]

    def __init__(self, state: AppState, actions: Sequence[Action]) -> None:
        super().__init__()
        self._actions = actions
        self._state = state

    def compose(self) -> ComposeResult:
        """Compose the table of keys."""
        dialog = Container(id="dialog")
        dialog.border_title = "keys"
        dialog.border_subtitle = "↑ ↓ scroll   esc close"
        with dialog, VerticalScroll():
            yield Static(self._table(), markup=False)

    def _table(self) -> Content:
        rows: list[Content] = []
        for group, actions in groupby(self._actions, key=lambda a: a.group):
            rows.append(assemble((group, BOLD)))
            for action in actions:
                rows.append(assemble((f"  {action.key:<7}", ACCENT), action.help))
                if action.commands and (reason := why_not(action, self._state)):
                    rows.append(assemble((f"{'':9}{reason}", f"{WATCH} dim")))
        rows.append(Content(""))
        rows.append(assemble((SIGNS, DIM)))
        return lines(*rows)
