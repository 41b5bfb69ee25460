"""The end of a run's journal, from which the bridge takes the newest sequence number and steps."""

from __future__ import annotations

from pathlib import Path

from ...protocol.codec import decode_readable
from ...protocol.events import StepFinished
from ...run.run_index import newest_seq, read_tail

_NEWEST = 10


class JournalTail:
    """The last records of the journal, read again only after the file has grown."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._size = -1
        self._tail: list[bytes] = []
        self._returned_seq = 0
        self.seq = 0
        """Sequence number of the newest record; 0 if there is none."""

    def refresh(self) -> None:
        """Read the tail again if the size of the journal has changed."""
        try:
            size = self._path.stat().st_size
        except FileNotFoundError:
            return
        if size != self._size:
            self._size = size
            self._tail = read_tail(self._path)[0]
            self.seq = newest_seq(self._tail) or self.seq

    def newest_steps(self) -> list[bytes]:
        """Return up to 10 encoded steps, the newest ones that no earlier call returned."""
        steps = [payload for payload in self._tail[-4 * _NEWEST :] if self._is_new_step(payload)]
        self._returned_seq = self.seq
        return steps[-_NEWEST:]

    def _is_new_step(self, payload: bytes) -> bool:
        record = decode_readable(payload)
        return (
            record is not None
            and record.seq > self._returned_seq
            and isinstance(record.event, StepFinished)
        )
