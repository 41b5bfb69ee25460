"""Who is watching: viewers by their connection, forgotten when they fall silent."""

from __future__ import annotations

from dataclasses import dataclass

SILENT_S = 15.0
"""A viewer that sent nothing for this long is gone; viewers ping every 2 s."""


@dataclass
class Viewer:
    """One viewer that said hello."""

    id: str
    issuer: str
    read_only: bool
    heard: float
    """Monotonic seconds of its last message."""


class Viewers:
    """The viewers of one run; times are monotonic seconds."""

    def __init__(self, now: float) -> None:
        self._by_connection: dict[bytes, Viewer] = {}
        self.last_heard = now
        """When any viewer was heard last."""

    def __len__(self) -> int:
        return len({viewer.id for viewer in self._by_connection.values()})

    def welcome(self, connection: bytes, viewer: Viewer) -> None:
        """A viewer said hello over a connection; its older connections are forgotten."""
        stale = [c for c, known in self._by_connection.items() if known.id == viewer.id]
        for old in stale:
            del self._by_connection[old]
        self._by_connection[connection] = viewer
        self.last_heard = viewer.heard

    def refresh(self, connection: bytes, now: float) -> Viewer | None:
        """Something came over a connection; who it was, None before a hello."""
        viewer = self._by_connection.get(connection)
        if viewer is not None:
            viewer.heard = self.last_heard = now
        return viewer

    def drop_silent(self, now: float) -> list[str]:
        """Drop viewers that have been silent too long; returns their ids."""
        silent = [c for c, v in self._by_connection.items() if now - v.heard > SILENT_S]
        return [self._by_connection.pop(connection).id for connection in silent]
