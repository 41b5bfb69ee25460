"""Textual messages of the app: deliveries waiting, listening ended, a text line resized."""

from __future__ import annotations

from dataclasses import dataclass

from textual.message import Message


@dataclass
class DeliveriesWaiting(Message):
    """The session has delivered something; one message stands for all waiting deliveries."""

    def can_replace(self, message: Message) -> bool:
        """Whether a message in the queue is of this kind, so that one of the two is enough."""
        return isinstance(message, DeliveriesWaiting)


@dataclass
class ListeningEnded(Message):
    """The session has stopped delivering."""

    fault: str = ""
    """The error that ended it; empty after a regular end."""


@dataclass
class TextLineResized(Message):
    """A text line has a new width or height, so its text must be laid out again."""

    def can_replace(self, message: Message) -> bool:
        """Whether a message in the queue is of this kind, so that a resize redraws once."""
        return isinstance(message, TextLineResized)
