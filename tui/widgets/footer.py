"""The footer: the keys of the screen in view; a click does what the key does."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from textual.content import Content

from ..action_words import ENTER, ENTER_SENDS, keys_of_screen
from ..actions import ACTION_OF, GO, Action, label_of, why_not
from ..view_model.app_state import AppState
from .text_line import BOLD, DIM, TextLine, assemble, spread

_RIGHT = 20
"""Actions of this footer rank or above are at the right edge."""
_BACK = "app.back"
"""The action that leaves a screen; it is at the right edge of every one but the dashboard."""
_SPARED, _ROOMY = 21, 100
"""The footer rank that is left out in terminals with fewer columns than the second number."""


class ActionFooter(TextLine):
    """Shows the keys that fit, in order of rank; keys that are not possible now are dimmed."""

    def show(
        self,
        state: AppState,
        actions: Sequence[Action],
        count: str | None = None,
        *,
        mode: str = "dashboard",
    ) -> None:
        """Draw the keys of a screen for a state.

        `count` is the count being typed, None if none is; `mode` is the name of the screen.
        """
        width = max(20, self.app.size.width - 2)
        wide = width >= _ROOMY
        wanted = sorted((a for a in actions if a.footer >= _RIGHT), key=lambda a: a.footer)
        right = [a for a in wanted if wide or a.footer != _SPARED]
        if mode != "dashboard":
            right = [*(a for a in actions if a.id == _BACK), *right]
        ending = Content("  ").join(_entry(a, state, a.id) for a in right)
        room = width - ending.cell_length - 2
        left = Content("") if count is None else assemble((f"next key × {count or '…'}", BOLD))
        for action in offered(state, actions, mode):
            longer = Content.assemble(left, "  " if left else "", _entry(action, state, mode))
            if longer.cell_length > room:
                break
            left = longer
        self.put(spread(left, ending, width))


def offered(state: AppState, actions: Iterable[Action], mode: str) -> list[Action]:
    """Return the actions for the left side of the footer of a screen.

    On the dashboard these are commands to the run, or if none can be sent, the screens. On other
    screens, commands that cannot be sent give way to keys that work.
    """
    known = {action.id: action for action in actions}
    here = [known[id_] for id_ in keys_of_screen(mode) if id_ in known]
    idle = state.read_only or state.state.ended
    if mode == "dashboard" or not here:
        ranked = sorted((a for a in known.values() if 0 < a.footer < _RIGHT), key=_rank)
        screens = [a for a in known.values() if a.group == GO and a.scope == "run"]
        return screens if idle else ranked
    if mode not in ENTER:
        here = [a for a in here if a.id != "list.open"]
    return [a for a in here if not (_performed(a, mode).commands and idle)]


def _performed(action: Action, mode: str) -> Action:
    """Return the action that a key performs: for enter on a row, that of the screen."""
    sent = ENTER_SENDS.get(mode) if action.id == "list.open" else None
    return action if sent is None else ACTION_OF[sent]


def _rank(action: Action) -> int:
    return action.footer


def _entry(action: Action, state: AppState, mode: str) -> Content:
    words = ENTER.get(mode) if action.id == "list.open" else None
    return _drawn(
        action.id,
        action.key,
        words or label_of(action, state),
        legal=why_not(_performed(action, mode), state) is None,
    )


@lru_cache(maxsize=512)
def _drawn(action_id: str, key: str, label: str, *, legal: bool) -> Content:
    click, key = f"@click=app.act('{action_id}')", key.replace("[", "\\[")
    if legal:
        return Content.from_markup(f"[{click}][b $accent]{key}[/] {label}[/]")
    return Content.from_markup(f"[{click}][{DIM}]{key} {label}[/][/]")
