"""The chat screen: prompts answered by the base and by the current weights, side by side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll

from fttui.engine.protocol.states import RunState

from ..actions import bindings, keyed
from ..dialogs.chat_input import told
from ..text.control_characters import escape_control_characters
from ..view_model.app_state import AppState
from ..widgets.chat_text import chat_rows
from ..widgets.text_line import DIM, TextLine, assemble, lines
from .base import RunScreen

EDGE = 6
"""Columns that border, padding and scroll bar take."""
MOST_SHOWN = 50
"""Exchanges that are shown, the newest ones."""


class ChatScreen(RunScreen):
    """Conversations, the newest prompt at the end; enter asks the next one."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *bindings(),
        Binding("enter", "app.act('run.chat')", show=False),
    ]
    AUTO_FOCUS = "#talk"

    def compose_body(self) -> ComposeResult:
        """Compose the panel."""
        panel = VerticalScroll(id="talk", classes="panel", can_focus=True)
        panel.border_title = "chat"
        with panel:
            yield TextLine(id="said")

    def numbered(self) -> Mapping[str, str]:
        """Return the panel, under the key that opens the screen."""
        return {"#talk": "go.chat"}

    def show_body(self, state: AppState, now: float) -> None:
        """Draw the newest conversations, and stay at the end if the end is in view."""
        panel = self.query_one("#talk", VerticalScroll)
        panel.border_subtitle = assemble((told(state.chat, state.run.chats), DIM))
        chats = state.run.chats
        shown = chats[-MOST_SHOWN:]
        rows = chat_rows(
            shown,
            max(20, self.app.size.width - EDGE),
            answering=state.state is RunState.EVALUATING,
        )
        if len(chats) > len(shown):
            rows.insert(0, assemble((f"{len(chats) - len(shown):,} earlier prompts", DIM)))
        if not chats:
            hint = "No prompt so far; {run.chat} asks the base and the current weights."
            rows = [assemble((keyed(hint, state), DIM))]
        at_end = panel.max_scroll_y - panel.scroll_y <= 1
        self.query_one("#said", TextLine).put(lines(*rows))
        if at_end:
            self.call_after_refresh(panel.scroll_end, animate=False)

    def text_to_copy(self) -> str:
        """Return the newest prompt and its answers as plain text; empty without one."""
        chats = self.fttui.state.run.chats
        if not chats:
            return ""
        parts = [chats[-1].asked.prompt, *(f"{a.answerer}: {a.text}" for a in chats[-1].answers)]
        return escape_control_characters("\n\n".join(parts))
