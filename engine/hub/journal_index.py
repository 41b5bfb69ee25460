"""The journal as the hub serves it: a tail to publish and any part of the past on request."""

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
    """Reads the journal once, front to back, and remembers where to find sequence numbers."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._tail = FrameReader(path)
        self._seqs: list[int] = []
        self._offsets: list[int] = []
        self.last_seq = 0
        """Newest sequence number seen; 0 when the journal is empty."""
        self.unreadable = 0
        """Whole frames that are no record."""

    def advance(self) -> list[bytes]:
        """The next records of the journal, up to about a mebibyte; empty at its present end."""
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
        """Records after a sequence number, at least one when there are any."""
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
