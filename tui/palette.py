"""The entries of the command palette, from the action table, and of the list of themes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import cast

from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.content import Content
from textual.theme import ThemeProvider

from .action_words import by_task, relevance
from .actions import Action, label_of, why_not
from .app_base import AppBase
from .widgets.text_line import ACCENT, BOLD, DIM, assemble

_MARGIN = 6
"""Columns of the palette beside an entry: padding and scroll bar."""
_LABEL = 18
"""Columns of the label, so that the helps begin below each other."""


class ActionCommands(Provider):
    """Provides all actions but the palette's own; one that is not possible now says why."""

    @property
    def _fttui(self) -> AppBase:
        return cast(AppBase, self.app)

    def _run(self, action: Action) -> Callable[[], None]:
        return partial(self._fttui.action_act, action.id)

    def _entries(self) -> Iterator[Action]:
        for _, actions in by_task(self._fttui.actions):
            yield from (action for action in actions if action.id != "app.commands")

    def _line(self, action: Action) -> Content:
        """Return an action as one line: label, help or why it is not possible now, and key."""
        state = self._fttui.state
        reason = why_not(action, state)
        return entry(
            label_of(action, state),
            action.help if reason is None else f"not now: {reason}",
            action.key,
            self.app.size.width - _MARGIN,
        )

    async def discover(self) -> Hits:
        """Yield all actions by task, the help first.

        A terminal may send escape and enter in one burst, which arrives as enter alone and runs the
        first entry: that one must be harmless.
        """
        for action in sorted(self._entries(), key=lambda a: a.id != "app.help"):
            yield DiscoveryHit(self._line(action), self._run(action), text=action.label)

    async def search(self, query: str) -> Hits:
        """Yield the actions that the words of the query find, then those with similar labels."""
        matcher = self.matcher(query)
        for action in self._entries():
            score = relevance(action, query) or 0.4 * matcher.match(action.label)
            if score > 0:
                yield Hit(score, self._line(action), self._run(action), text=action.label)


class ThemeCommands(ThemeProvider):
    """Provides the themes by name; the one in use is marked, in words and by a sign."""

    def _line(self, name: str) -> Content:
        if name != self.app.theme:
            return assemble(f"  {name}")
        return assemble(("● ", ACCENT), (name, BOLD), ("   in use", DIM))

    async def discover(self) -> Hits:
        """Yield all themes by name."""
        for name, choose in self.commands:
            yield DiscoveryHit(self._line(name), choose, text=name)

    async def search(self, query: str) -> Hits:
        """Yield the themes whose names are like the query."""
        matcher = self.matcher(query)
        for name, choose in self.commands:
            if (score := matcher.match(name)) > 0:
                yield Hit(score, self._line(name), choose, text=name)


def entry(label: str, words: str, key: str, width: int) -> Content:
    """Return one line of `width` cells: a label, words about it that may be cut, and a key."""
    left = assemble(f"{label:<{_LABEL}} ", (words, DIM))
    room = max(0, width - len(key) - 2)
    shown = left.truncate(room, ellipsis=True)
    gap = " " * max(2, width - shown.cell_length - len(key))
    return assemble(shown, gap, (key, ACCENT))
