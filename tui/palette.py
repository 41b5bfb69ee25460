"""The command palette's entries, generated from the action table."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, cast

from textual.command import DiscoveryHit, Hit, Hits, Provider

from .actions import Action, label_of, why_not

if TYPE_CHECKING:
    from .app import FttuiApp


class ActionCommands(Provider):
    """Every action; those that are not legal now say why in their help."""

    @property
    def _fttui(self) -> FttuiApp:
        return cast("FttuiApp", self.app)

    def _entries(self) -> Iterator[tuple[Action, str, str]]:
        for action in self._fttui.actions:
            if action.id == "app.commands":
                continue
            reason = why_not(action, self._fttui.state)
            note = f" (not now: {reason})" if reason else ""
            name = f"{action.group.lower()}: {label_of(action, self._fttui.state)}"
            yield action, name, f"{action.key}  {action.help}{note}"

    async def discover(self) -> Hits:
        """Everything, in the table's order, but first what cannot do harm.

        A terminal may send escape and enter as one key, which arrives as enter alone.
        """
        for action, name, words in sorted(self._entries(), key=lambda e: e[0].id != "app.help"):
            yield DiscoveryHit(name, partial(self._fttui.perform, action.id), help=words)

    async def search(self, query: str) -> Hits:
        """What fits a text."""
        matcher = self.matcher(query)
        for action, name, words in self._entries():
            score = max(matcher.match(name), 0.8 * matcher.match(action.help))
            if score > 0:
                command = partial(self._fttui.perform, action.id)
                yield Hit(score, matcher.highlight(name), command, help=words)
