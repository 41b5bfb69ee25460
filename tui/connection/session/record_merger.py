"""Merge published and pulled records into one sequence, and decode them for delivery."""

from __future__ import annotations

from collections.abc import Iterable

from fttui.engine.protocol.codec import DecodeError, decode_readable, peek_seq

from ...view_model.connection_port import RecordsArrived

MAX_HELD = 20_000
"""Live records kept while older ones are missing; further ones are dropped and pulled later."""
MAX_DELIVERED = 2_000
"""Records per delivery, so that the app can draw in between."""


class RecordMerger:
    """Releases encoded records in the order of their sequence numbers, each once."""

    def __init__(self, last_seq: int = 0) -> None:
        self.last_seq = last_seq
        """The sequence number of the newest released record; 0 before the first one."""
        self._held: dict[int, bytes] = {}

    @property
    def gap(self) -> bool:
        """Whether live records are kept back, because older ones are missing and must be pulled."""
        return bool(self._held)

    def live(self, payloads: Iterable[bytes]) -> list[bytes]:
        """Add records of the live stream; return those that can be delivered now.

        Others are held until the missing ones before them have come, at most `MAX_HELD`.

        Raises:
            DecodeError: the bytes are not a record.
        """
        for payload in payloads:
            seq = peek_seq(payload)
            if seq > self.last_seq and len(self._held) < MAX_HELD:
                self._held[seq] = payload
        return self._release()

    def history(self, payloads: Iterable[bytes]) -> list[bytes]:
        """Add records pulled from the journal; return those that can be delivered now.

        A number that the journal lacks is not waited for, and what is not a record is left out.
        """
        released = []
        for payload in payloads:
            try:
                seq = peek_seq(payload)
            except DecodeError:
                continue  # a frame that is not a record, in a journal from elsewhere
            if seq > self.last_seq:
                self._held.pop(seq, None)
                self.last_seq = seq
                released.append(payload)
        return released + self._release()

    def _release(self) -> list[bytes]:
        released = []
        while (payload := self._held.pop(self.last_seq + 1, None)) is not None:
            self.last_seq += 1
            released.append(payload)
        if self._held and min(self._held) <= self.last_seq:
            self._held = {s: p for s, p in self._held.items() if s > self.last_seq}
        return released


def deliveries(payloads: list[bytes]) -> Iterable[RecordsArrived]:
    """Decode released records into deliveries of at most `MAX_DELIVERED` records."""
    for start in range(0, len(payloads), MAX_DELIVERED):
        decoded = [decode_readable(payload) for payload in payloads[start : start + MAX_DELIVERED]]
        records = [record for record in decoded if record is not None]
        yield RecordsArrived(records=records, unknown=len(decoded) - len(records))
