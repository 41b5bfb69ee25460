"""Commands on their way: sent, not yet answered."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fttui.engine.protocol.requests import SubmitCommand


@dataclass
class _Pending:
    message: SubmitCommand
    sent: float = 0.0
    """Monotonic seconds; 0 when never."""


class PendingCommands:
    """Remembers each command until it is answered, so that it can be sent again."""

    def __init__(self) -> None:
        self._by_id: dict[str, _Pending] = {}

    def add(self, message: SubmitCommand) -> None:
        """A person asked for something."""
        self._by_id[message.id] = _Pending(message)

    def answered(self, id_: str) -> bool:
        """Forget a command; False when its answer was there before."""
        return self._by_id.pop(id_, None) is not None

    def ids(self) -> list[str]:
        """The commands without an answer."""
        return list(self._by_id)

    def due(self, unanswered_since: float, now: float) -> Iterator[SubmitCommand]:
        """Commands never sent, or last sent at or before a moment; they count as sent now."""
        for pending in self._by_id.values():
            if pending.sent <= unanswered_since:
                pending.sent = now
                yield pending.message
