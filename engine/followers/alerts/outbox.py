"""When messages are sent: quiet hours, limits and repeated attempts; pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from .messages import Message

URGENT = frozenset({"failed", "halted", "disk"})
"""Kinds that are sent also in quiet hours."""
_HOUR_S = 3600.0
_MOST_WAITING = 200


@dataclass(frozen=True)
class QuietHours:
    """A part of each day, in minutes after midnight; it may pass midnight.

    With equal times it is the whole day.
    """

    start: int
    end: int

    @classmethod
    def parse(cls, text: str) -> QuietHours:
        """Parse hours such as `22:00-07:00`.

        Raises:
            ValueError: the text is no such range.
        """
        start, end = (_minute(part) for part in text.split("-"))
        return cls(start, end)

    def hold(self, minute: int) -> bool:
        """Whether a minute of the day is in the quiet hours."""
        if self.start < self.end:
            return self.start <= minute < self.end
        return minute >= self.start or minute < self.end


def _minute(text: str) -> int:
    hours, minutes = text.split(":")
    return int(hours) * 60 + int(minutes)


class Outbox:
    """The messages that wait to be sent, in their order."""

    def __init__(self, mute: frozenset[str], quiet: QuietHours | None, most_per_hour: int) -> None:
        """Prepare it.

        Args:
            mute: kinds that are never sent.
            quiet: hours in which only urgent kinds are sent; None without.
            most_per_hour: messages that are sent in any hour at most.
        """
        self._mute, self._quiet, self._most = mute, quiet, most_per_hour
        self.waiting: list[Message] = []
        """What is to be sent, in its order."""
        self._dropped = 0
        self._sent: deque[float] = deque()
        self._held = False

    def put(self, message: Message) -> None:
        """Add a message, unless its kind is muted; of too many the oldest one is dropped."""
        if message.kind in self._mute:
            return
        self.waiting.append(message)
        if len(self.waiting) > _MOST_WAITING:
            del self.waiting[0]
            self._dropped += 1

    @property
    def empty(self) -> bool:
        """Whether nothing waits."""
        return not self.waiting

    def due(self, now: float, minute: int) -> list[Message]:
        """Return the messages that are to be sent now as one; call `sent` once they are.

        Args:
            now: seconds of a steady clock.
            minute: minute of the local day.
        """
        while self._sent and now - self._sent[0] >= _HOUR_S:
            self._sent.popleft()
        if len(self._sent) >= self._most:
            return []
        if self._quiet is not None and self._quiet.hold(minute):
            self._held = True
            return [message for message in self.waiting if message.kind in URGENT][:1]
        # What waited for the end of the quiet hours, or for an hour to pass, is one message.
        return (
            self.waiting[:] if self._held or len(self.waiting) > self._most else (self.waiting[:1])
        )

    def sent(self, messages: list[Message], now: float) -> None:
        """Remove messages that were sent as one."""
        self._sent.append(now)
        self.waiting = [message for message in self.waiting if message not in messages]
        self._held = self._held and bool(self.waiting)
        self._dropped = 0

    def text(self, messages: list[Message]) -> str:
        """Return the text for messages that are sent as one."""
        lines = [message.text for message in messages]
        if self._dropped:
            lines.append(f"{self._dropped} older messages were dropped")
        return "\n".join(lines)
