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
class DeedWanted(Message):
    """Someone asked for an action by its id: the palette or a click."""

    action_id: str
