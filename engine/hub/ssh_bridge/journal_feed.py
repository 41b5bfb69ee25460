"""The journal from any record on, strictly in order."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from pathlib import Path

from ...errors import FttuiError
from ...protocol.codec import DecodeError, peek_seq
from ...protocol.ssh_protocol import JournalPosition
from ...run.journal import MAX_PAYLOAD_BYTES, FrameReader
from ...run.run_index import read_tail

_SCAN_BYTES = 1024 * 1024


class JournalReplaced(FttuiError):
    """The journal is not the one the viewer has seen."""


@dataclass(frozen=True)
class FeedBatch:
    """Some records in a row."""

    payloads: list[bytes]
    last_seq: int
    offset: int
    """Where the frame of the last of them begins."""


class JournalFeed:
    """Reads a journal once, forwards."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._reader = FrameReader(path)
        self.last_seq = 0
        """Of the newest record given out or skipped."""

    @property
    def offset(self) -> int:
        """Where the next frame begins."""
        return self._reader.offset

    def size_bytes(self) -> int:
        """Of the journal now; 0 when there is none."""
        try:
            return self._path.stat().st_size
        except FileNotFoundError:
            return 0

    def remaining_bytes(self) -> int:
        """Journal not read yet.

        Raises:
            JournalReplaced: the journal has become shorter than what was read.
        """
        size = self.size_bytes()
        if size < self._reader.offset:
            raise JournalReplaced(
                f"{self._path} was cut or replaced: it ends before record {self.last_seq}, which "
                "was read already; attach again to see what it holds now"
            )
        return size - self._reader.offset

    def resume(self, seen: JournalPosition) -> None:
        """Go on behind a record that the viewer has.

        Raises:
            JournalReplaced: the journal holds another record in its place, or none.
        """
        if not (self._found_at(seen) or self._found_by_scan(seen)):
            raise JournalReplaced(
                f"record {seen.seq}, the last one seen, is not in {self._path} (any more): it "
                "lost records or was replaced; attach again to see what it holds now"
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
        """Only what is written from now on."""
        frames, end = read_tail(self._path)
        self._go_on(end, peek_seq(frames[-1]) if frames else 0)

    def _go_on(self, offset: int, last_seq: int) -> None:
        self._reader = FrameReader(self._path, offset)
        self.last_seq = last_seq

    def next(self, limit_bytes: int) -> FeedBatch | None:
        """The next records, about as many as fit, at least one; None at the present end."""
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
