"""The help dialog: all keys by task, in columns, with a search."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from ...action_words import by_task, relevance
from ...actions import Action, why_not
from ...view_model.app_state import AppState
from ...widgets.text_line import ACCENT, BOLD, DIM, WATCH, assemble, lines, plain

SIGNS = (
    "◆ checkpoint · ↺ rollback · ▲ alarm · △ watch · ✓ verdict · ✎ note · ┴ command · ✗ NaN or ∞ · "
    "↑ above the plot"
)
_TWO, _THREE = 120, 190
"""Widths of the terminal from which the help has two and three columns."""
_KEY, _GAP = 8, 3
"""Columns of a key, and between two columns of the help."""
_FEW = 3
"""A reason that more commands share is given once, at the top."""
_FRAME = 8
"""Columns of the dialog beside the text: border, padding, scroll bar."""


class HelpScreen(ModalScreen[None]):
    """Lists the keys by task; a command that is not possible now says why."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "back", "close"),
        Binding("question_mark,f1,q,enter", "dismiss", "close"),
        Binding("slash,f3", "search", "search"),
    ]
    AUTO_FOCUS = "VerticalScroll"

    def __init__(self, state: AppState, actions: Sequence[Action]) -> None:
        super().__init__()
        self._actions = actions
        self._state = state

    def compose(self) -> ComposeResult:
        """Compose the table of keys and the search above it."""
        dialog = Container(id="dialog")
        dialog.border_title = "keys"
        dialog.border_subtitle = "↑ ↓ scroll   / search   esc close"
        with dialog:
            yield Input(placeholder="search: what do you want to do?", id="search", compact=True)
            with VerticalScroll():
                yield Static(markup=False, id="keys")

    def on_mount(self) -> None:
        """Show all keys, with the search hidden."""
        self.query_one(Input).display = False
        self._show("")

    def on_resize(self) -> None:
        """Lay the keys out for the new width."""
        self._show(self.query_one(Input).value)

    def action_search(self) -> None:
        """Show the search and focus it."""
        field = self.query_one(Input)
        field.display = True
        field.focus()

    def action_back(self) -> None:
        """Clear and hide the search; without one, close the help."""
        field = self.query_one(Input)
        if not field.display:
            self.dismiss()
            return
        field.value = ""
        field.display = False
        self.query_one(VerticalScroll).focus()

    @on(Input.Changed)
    def _narrow(self, event: Input.Changed) -> None:
        self._show(event.value)

    @on(Input.Submitted)
    def _keep(self) -> None:
        self.query_one(VerticalScroll).focus()

    def _show(self, query: str) -> None:
        width = min(self.app.size.width, 230)
        self.query_one("#dialog").styles.width = width - 4 if width >= _TWO else min(width, 100)
        room = (width - 4 if width >= _TWO else min(width, 100)) - _FRAME
        columns = 3 if width >= _THREE else 2 if width >= _TWO else 1
        blocks = blocks_of(self._state, self._actions, query, (room + _GAP) // columns - _GAP)
        text = side_by_side(blocks, columns, (room + _GAP) // columns)
        found = sum(len(block) for block in blocks)
        last = assemble((SIGNS, DIM)) if found else plain("nothing found; try another word")
        self.query_one("#keys", Static).update(lines(*text, Content(""), last))


def blocks_of(
    state: AppState, actions: Sequence[Action], query: str, width: int
) -> list[list[Content]]:
    """Return one block of lines per task: the heading, its keys and why some do nothing now.

    With a query, only actions that match it are listed. A reason that more than three commands
    share is given once, in a first block. No line is wider than `width` cells.
    """
    shown = [a for a in actions if not query.strip() or relevance(a, query) > 0]
    reasons = [r for a in shown if a.commands and (r := why_not(a, state))]
    common = next((r for r in reasons if reasons.count(r) > _FEW), None)
    blocks = [_wrapped(Content(""), f"Commands: {common}", WATCH, width)] if common else []
    for task, group in by_task(shown):
        rows = [assemble((task, BOLD))]
        for action in group:
            key = assemble((f" {action.key:<{_KEY}}", ACCENT))
            rows += _wrapped(key, action.help, "", width)
            reason = why_not(action, state) if action.commands else None
            if reason and reason != common:
                rows += _wrapped(plain(" " * (_KEY + 1)), reason, f"{WATCH} dim", width)
        blocks.append(rows)
    return blocks


def _wrapped(first: Content, text: str, style: str, width: int) -> list[Content]:
    """Return a text after `first`, broken at spaces, so that no line is wider than `width`."""
    rows, line = list[str](), ""
    for word in text.split():
        if line and len(line) + 1 + len(word) > width - _KEY - 1:
            rows.append(line)
            line = word
        else:
            line = f"{line} {word}".strip()
    starts = [first, *[plain(" " * (_KEY + 1))] * len(rows)]
    parts = [assemble((row, style) if style else row) for row in (*rows, line)]
    return [assemble(start, part) for start, part in zip(starts, parts, strict=True)]


def side_by_side(blocks: Sequence[list[Content]], columns: int, width: int) -> list[Content]:
    """Return blocks of lines in a number of columns of `width` cells, read downwards.

    The columns are as even as whole blocks allow.
    """
    heights = [len(block) + 1 for block in blocks]
    target = max([sum(heights) / columns, *heights]) if heights else 0
    held: list[list[Content]] = [[] for _ in range(columns)]
    at = 0
    for block, height in zip(blocks, heights, strict=True):
        if held[at] and len(held[at]) + height > target + height / 2 and at + 1 < columns:
            at += 1
        held[at] += [*([Content("")] if held[at] else []), *block]
    tallest = max(map(len, held), default=0)
    return [
        assemble(*(_padded(column, row, width) for column in held[:-1]), _padded(held[-1], row, 0))
        for row in range(tallest)
    ]


def _padded(column: list[Content], row: int, width: int) -> Content:
    found = column[row] if row < len(column) else Content("")
    return assemble(found, " " * max(0, width - found.cell_length))
