"""The command palette's entries, generated from the action table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import cast

from textual.command import DiscoveryHit, Hit, Hits, Provider

from .actions import Action, label_of, why_not
from .app_base import AppBase


class ActionCommands(Provider):
    """Provides all actions but the palette's own; one that is not possible now says why."""

    @property
    def _fttui(self) -> AppBase:
        return cast(AppBase, self.app)

    def _run(self, action: Action) -> Callable[[], None]:
        return partial(self._fttui.action_act, action.id)

    def _entries(self) -> Iterator[tuple[Action, str, str]]:
        for action in self._fttui.actions:
            if action.id == "app.commands":
                continue
            reason = why_not(action, self._fttui.state)
            note = f" (not now: {reason})" if reason else ""
            name = f"{action.group.lower()}: {label_of(action, self._fttui.state)}"
            yield action, name, f"{action.key}  {action.help}{note}"

    async def discover(self) -> Hits:
        """Yield all actions in the table's order, the help first.

        A terminal may send escape and enter in one burst, which arrives as enter alone and runs the
        first entry: that one must be harmless.
        """
        for action, name, words in sorted(self._entries(), key=lambda e: e[0].id != "app.help"):
            yield DiscoveryHit(name, self._run(action), help=words)

    async def search(self, query: str) -> Hits:
        """Yield the actions whose name or help matches the query."""
        matcher = self.matcher(query)
        for action, name, words in self._entries():
            score = max(matcher.match(name), 0.8 * matcher.match(action.help))
            if score > 0:
                yield Hit(score, matcher.highlight(name), self._run(action), help=words)
