"""Putting the live stream and the pulled history together: in order, no gap, no double."""

from __future__ import annotations

from collections.abc import Iterable

from fttui.engine.protocol.codec import decode_readable, peek_seq

from ..view_model.connection_port import RecordsArrived

MAX_HELD = 20_000
"""Live records kept while older ones are missing; more are dropped and pulled again later."""
MAX_DELIVERED = 2_000
"""Records per delivery, so that the app gets to draw in between."""


class RecordMerger:
    """Releases records strictly by sequence number."""

    def __init__(self, last_seq: int = 0) -> None:
        self.last_seq = last_seq
        """Newest record released."""
        self._held: dict[int, bytes] = {}

    @property
    def gap(self) -> bool:
        """Live records wait for older ones that have to be pulled."""
        return bool(self._held)

    def live(self, payloads: Iterable[bytes]) -> list[bytes]:
        """Take records off the stream; returns those that can be shown now."""
        for payload in payloads:
            seq = peek_seq(payload)
            if seq > self.last_seq and len(self._held) < MAX_HELD:
                self._held[seq] = payload
        return self._release()

    def history(self, payloads: Iterable[bytes]) -> list[bytes]:
        """Take records pulled from the journal: what is missing there exists nowhere."""
        released = []
        for payload in payloads:
            seq = peek_seq(payload)
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
    """Decode released records into deliveries of bounded size."""
    for start in range(0, len(payloads), MAX_DELIVERED):
        decoded = [decode_readable(payload) for payload in payloads[start : start + MAX_DELIVERED]]
        records = [record for record in decoded if record is not None]
        yield RecordsArrived(records=records, unknown=len(decoded) - len(records))
