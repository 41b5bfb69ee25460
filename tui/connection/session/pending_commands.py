"""Commands without an answer yet, kept so that they can be sent again under their ids."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fttui.engine.protocol.requests import SubmitCommand


@dataclass
class _SubmittedCommand:
    message: SubmitCommand
    sent_at: float | None = None
    """Monotonic seconds of the last sending; None before the first one."""


class PendingCommands:
    """Keeps each command until it is answered, so that it can be sent again under its id."""

    def __init__(self) -> None:
        self._by_id: dict[str, _SubmittedCommand] = {}

    def add(self, message: SubmitCommand) -> None:
        """Add a command that was not sent yet."""
        self._by_id[message.id] = _SubmittedCommand(message)

    def answered(self, id_: str) -> bool:
        """Forget a command; return False if it was answered before or never added."""
        return self._by_id.pop(id_, None) is not None

    def ids(self) -> list[str]:
        """Return the ids of all commands without an answer, in the order of submission."""
        return list(self._by_id)

    def unsent(self, now: float) -> Iterator[SubmitCommand]:
        """Yield the commands that were never sent, and note them as sent at `now` (monotonic)."""
        yield from self._send(now, [c for c in self._by_id.values() if c.sent_at is None])

    def due(self, now: float, after_s: float) -> Iterator[SubmitCommand]:
        """Yield commands never sent or last sent at least `after_s` ago; note them as sent now."""
        late = [c for c in self._by_id.values() if c.sent_at is None or now - c.sent_at >= after_s]
        yield from self._send(now, late)

    def _send(self, now: float, commands: list[_SubmittedCommand]) -> Iterator[SubmitCommand]:
        for command in commands:
            command.sent_at = now
            yield command.message
