"""An index of the journal, from which the hub reads new records and any part of the history."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path

from ..protocol.codec import DecodeError, pack_history, peek_seq
from ..protocol.requests import HistoryChunk
from ..run.journal import FrameReader

INDEX_EVERY_BYTES = 256 * 1024
MAX_CHUNK_BYTES = 1024 * 1024
_READ_BYTES = 1024 * 1024


class JournalIndex:
    """Reads the journal once from the start and keeps the offset of a record every 256 KiB."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._tail = FrameReader(path)
        self._seqs: list[int] = []
        self._offsets: list[int] = []
        self.last_seq = 0
        """The newest sequence number read; 0 before the first record."""
        self.unreadable = 0
        """Number of whole frames that are not records."""

    def advance(self) -> list[bytes]:
        """Return the next encoded records, up to about 1 MiB; empty at the end of the journal."""
        fresh = []
        for start, payload in self._tail.read(_READ_BYTES):
            try:
                seq = peek_seq(payload)
            except DecodeError:
                self.unreadable += 1
                continue
            if not self._offsets or start - self._offsets[-1] >= INDEX_EVERY_BYTES:
                self._seqs.append(seq)
                self._offsets.append(start)
            self.last_seq = seq
            fresh.append(payload)
        return fresh

    def chunk(self, ref: int, after_seq: int, max_bytes: int) -> HistoryChunk:
        """Return the reply with the records after a sequence number; it is empty if there are none.

        The records have up to `max_bytes`, and 1 MiB at most, before they are packed; one record is
        returned whatever its size.
        """
        limit_bytes = min(max(max_bytes, 1), MAX_CHUNK_BYTES)
        records: list[bytes] = []
        first, last, size_bytes = 0, after_seq, 0
        for seq, payload in self._after(after_seq):
            if records and size_bytes + len(payload) > limit_bytes:
                break
            records.append(payload)
            size_bytes += len(payload)
            first, last = first or seq, seq
        return HistoryChunk(
            ref=ref,
            first_seq=first,
            last_seq=last,
            head_seq=self.last_seq,
            blob=pack_history(records) if records else b"",
        )

    def _after(self, after_seq: int) -> Iterator[tuple[int, bytes]]:
        if after_seq >= self.last_seq:
            return
        at = max(0, bisect_right(self._seqs, after_seq + 1) - 1)
        reader = FrameReader(self._path, self._offsets[at])
        while frames := reader.read(_READ_BYTES):
            for _, payload in frames:
                try:
                    seq = peek_seq(payload)
                except DecodeError:
                    continue
                if seq > self.last_seq:
                    return
                if seq > after_seq:
                    yield seq, payload
