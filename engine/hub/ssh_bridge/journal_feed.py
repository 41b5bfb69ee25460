"""Reads the journal for a remote viewer in strict order, after the newest record that it has."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from pathlib import Path

from ...errors import JournalReplaced
from ...protocol.codec import DecodeError, peek_seq
from ...protocol.ssh_protocol import JournalPosition
from ...run.damage import MAX_PAYLOAD_BYTES
from ...run.journal import FrameReader
from ...run.run_index import newest_seq, read_tail

_SCAN_BYTES = 1024 * 1024


@dataclass(frozen=True)
class FeedBatch:
    """Consecutive records of a journal, encoded."""

    payloads: list[bytes]
    last_seq: int
    offset: int
    """Offset of the last record's frame."""


class JournalFeed:
    """Reads a journal forwards, each record once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._reader = FrameReader(path)
        self.last_seq = 0
        """Sequence number of the newest record returned or skipped."""

    @property
    def offset(self) -> int:
        """Offset of the next frame."""
        return self._reader.offset

    def size_bytes(self) -> int:
        """Return the current size of the journal; 0 if there is none."""
        try:
            return self._path.stat().st_size
        except FileNotFoundError:
            return 0

    def remaining_bytes(self) -> int:
        """Return the number of bytes not read yet.

        Raises:
            JournalReplaced: the journal is shorter than the part already read.
        """
        size = self.size_bytes()
        if size < self._reader.offset:
            raise JournalReplaced(
                f"{self._path} was truncated or replaced: it ends before record {self.last_seq}, "
                "which was already read; attach again to see what it holds now"
            )
        return size - self._reader.offset

    def resume(self, seen: JournalPosition) -> None:
        """Continue after the newest record that the viewer has.

        Raises:
            JournalReplaced: the journal does not contain that record.
        """
        if not (self._found_at(seen) or self._found_by_scan(seen)):
            raise JournalReplaced(
                f"record {seen.seq}, the newest one shown, is no longer in {self._path}: the "
                "journal lost records or was replaced; attach again to see what it holds now"
            )

    def _found_at(self, seen: JournalPosition) -> bool:
        reader = FrameReader(self._path, seen.offset)
        if seen.offset <= 0:
            return False
        frames = reader.read(_SCAN_BYTES) or reader.read(MAX_PAYLOAD_BYTES)
        if not frames or not _is(seen, frames[0][1]):
            return False
        after = frames[1][0] if len(frames) > 1 else reader.offset
        self._go_on(after, seen.seq)
        return True

    def _found_by_scan(self, seen: JournalPosition) -> bool:
        reader = FrameReader(self._path)
        while frames := reader.read(_SCAN_BYTES):
            ends = [start for start, _ in frames[1:]] + [reader.offset]
            for (_, payload), end in zip(frames, ends, strict=True):
                if _is(seen, payload):
                    self._go_on(end, seen.seq)
                    return True
        return False

    def skip_to_end(self) -> None:
        """Skip all existing records."""
        frames, end = read_tail(self._path)
        self._go_on(end, newest_seq(frames))

    def _go_on(self, offset: int, last_seq: int) -> None:
        self._reader = FrameReader(self._path, offset)
        self.last_seq = last_seq

    def next(self, limit_bytes: int) -> FeedBatch | None:
        """Return the next records, about `limit_bytes` in total; other frames are left out.

        None at the end of the journal, and if none of the frames just read is a record.
        """
        frames = self._reader.read(limit_bytes)
        payloads, offset = [], 0
        for start, payload in frames:
            try:
                self.last_seq = peek_seq(payload)
            except DecodeError:
                continue
            payloads.append(payload)
            offset = start
        return FeedBatch(payloads, self.last_seq, offset) if payloads else None


def _is(seen: JournalPosition, payload: bytes) -> bool:
    try:
        return zlib.crc32(payload) == seen.crc and peek_seq(payload) == seen.seq
    except DecodeError:
        return False
