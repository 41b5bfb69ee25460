"""The footer: the most important keys in the current state; a click does what the key does."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from textual.content import Content

from ..actions import GO, Action, label_of, why_not
from ..view_model.app_state import AppState
from .text_line import BOLD, DIM, TextLine, assemble, spread

_RIGHT = 20
"""Actions of this footer rank or above are at the right edge."""
_SPARED, _ROOMY = 21, 100
"""The footer rank that is left out in terminals with fewer columns than the second number."""


class ActionFooter(TextLine):
    """Shows the keys that fit, in order of rank; keys that are not possible now are dimmed."""

    def show(self, state: AppState, actions: Sequence[Action], count: str | None = None) -> None:
        """Draw the keys for a state; `count` is the count being typed, None if none is."""
        wanted = sorted((a for a in actions if a.footer), key=lambda a: a.footer)
        width = max(20, self.app.size.width - 2)
        wide = width >= _ROOMY
        right = [a for a in wanted if a.footer >= _RIGHT and (wide or a.footer != _SPARED)]
        ending = Content("  ").join(_entry(a, state) for a in right)
        room = width - ending.cell_length - 2
        left = Content("") if count is None else assemble((f"next key × {count or '…'}", BOLD))
        for action in _offered(state, actions, wanted):
            longer = Content.assemble(left, "  " if left else "", _entry(action, state))
            if longer.cell_length > room:
                break
            left = longer
        self.put(spread(left, ending, width))


def _offered(state: AppState, actions: Sequence[Action], wanted: Sequence[Action]) -> list[Action]:
    """Return the actions for the left side: those that change the run.

    For a read-only viewer, and after the end of the run, they are those that open screens.
    """
    if state.read_only or state.state.ended:
        return [a for a in actions if a.group == GO and a.scope == "run"]
    return [a for a in wanted if a.footer < _RIGHT]


def _entry(action: Action, state: AppState) -> Content:
    return _drawn(
        action.id, action.key, label_of(action, state), legal=why_not(action, state) is None
    )


@lru_cache(maxsize=512)
def _drawn(action_id: str, key: str, label: str, *, legal: bool) -> Content:
    click, key = f"@click=app.act('{action_id}')", key.replace("[", "\\[")
    if legal:
        return Content.from_markup(f"[{click}][b $accent]{key}[/] {label}[/]")
    return Content.from_markup(f"[{click}][{DIM}]{key} {label}[/][/]")
