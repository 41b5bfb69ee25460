"""The connected viewers of a run, removed after 15 seconds without a message."""

from __future__ import annotations

from dataclasses import dataclass

SILENT_S = 15.0
"""Seconds without a message after which a viewer is removed; viewers ping every 2 s."""


@dataclass
class Viewer:
    """One viewer that has sent `Hello`."""

    id: str
    issuer: str
    read_only: bool
    last_message_at: float
    """When its last message arrived, in monotonic seconds."""


class Viewers:
    """The viewers of one run; times are monotonic seconds."""

    def __init__(self, now: float) -> None:
        self._by_connection: dict[bytes, Viewer] = {}
        self.last_message_at = now
        """When the last message of any viewer arrived."""

    def __len__(self) -> int:
        return len({viewer.id for viewer in self._by_connection.values()})

    def welcome(self, connection: bytes, viewer: Viewer) -> None:
        """Add a viewer under its connection and remove its older connections."""
        stale = [c for c, known in self._by_connection.items() if known.id == viewer.id]
        for old in stale:
            del self._by_connection[old]
        self._by_connection[connection] = viewer
        self.last_message_at = viewer.last_message_at

    def refresh(self, connection: bytes, now: float) -> Viewer | None:
        """Note a message on a connection; return its viewer, or None if it has not sent `Hello`."""
        viewer = self._by_connection.get(connection)
        if viewer is not None:
            viewer.last_message_at = self.last_message_at = now
        return viewer

    def drop_silent(self, now: float) -> list[str]:
        """Remove viewers that have sent nothing for 15 seconds; return their ids."""
        silent = [c for c, v in self._by_connection.items() if now - v.last_message_at > SILENT_S]
        return [self._by_connection.pop(connection).id for connection in silent]
