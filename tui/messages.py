"""Messages inside the app: facts that widgets and workers post, never calls into each other."""

from __future__ import annotations

from dataclasses import dataclass

from textual.message import Message


@dataclass
class DeliveriesWaiting(Message):
    """The session delivered something; one message stands for all that is waiting."""

    def can_replace(self, message: Message) -> bool:
        """A burst collapses into one."""
        return isinstance(message, DeliveriesWaiting)


@dataclass
class ListeningEnded(Message):
    """The session stopped delivering; `fault` says why when it was an error."""

    fault: str = ""


@dataclass
class RoomChanged(Message):
    """A widget that lays its text out by hand has another width or height."""

    def can_replace(self, message: Message) -> bool:
        """Many at once ask for one redraw."""
        return isinstance(message, RoomChanged)
