"""The connected viewers of a run, which no longer count after 15 seconds without a message.

What a viewer said about itself is kept beyond that, because a suspended viewer comes back on the
same connection: one that may only watch must not become able to send commands by being silent.
"""

from __future__ import annotations

from dataclasses import dataclass

SILENT_S = 15.0
"""Seconds without a message after which a viewer no longer counts; viewers ping every 2 s."""
MOST_SILENT = 1000
"""Silent viewers that are remembered. Nothing reports the end of a connection, but a hub ends
itself at about 250 open ones, so the longest silent ones of so many viewers have ended."""


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
        self._silent: dict[bytes, Viewer] = {}
        """Viewers that no longer count, the longest silent first."""
        self.last_message_at = now
        """When the last message of any viewer arrived."""

    def __len__(self) -> int:
        return len({viewer.id for viewer in self._by_connection.values()})

    def welcome(self, connection: bytes, viewer: Viewer) -> None:
        """Add a viewer under its connection and remove its older connections."""
        for known in (self._by_connection, self._silent):
            for old in [c for c, earlier in known.items() if earlier.id == viewer.id]:
                del known[old]
        self._silent.pop(connection, None)
        self._by_connection[connection] = viewer
        self.last_message_at = viewer.last_message_at

    def refresh(self, connection: bytes, now: float) -> None:
        """Note a message on a connection; a silent viewer counts again."""
        if connection in self._silent:
            self._by_connection[connection] = self._silent.pop(connection)
        viewer = self._by_connection.get(connection)
        if viewer is not None:
            viewer.last_message_at = self.last_message_at = now

    def only_watches(self, connection: bytes, viewer_id: str) -> bool:
        """Whether the viewer of a connection, or of an id, has said that it is read-only."""
        known = [*self._by_connection.items(), *self._silent.items()]
        return any(v.read_only for c, v in known if c == connection or v.id == viewer_id)

    def drop_silent(self, now: float) -> list[str]:
        """Stop counting viewers that have sent nothing for 15 seconds; return their ids."""
        silent = [c for c, v in self._by_connection.items() if now - v.last_message_at > SILENT_S]
        gone = {connection: self._by_connection.pop(connection) for connection in silent}
        self._silent |= gone
        for connection in list(self._silent)[:-MOST_SILENT]:
            del self._silent[connection]
        return [viewer.id for viewer in gone.values()]
