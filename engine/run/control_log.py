"""The control journal: accepted commands on their way from the hub to the engine.

The hub appends an entry, syncs it, then rings the doorbell (an int64 in a mapped file). The
engine reads that integer at every micro-batch and opens the journal only when it has risen.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import msgspec

from ..protocol.commands import AnyCommand
from .journal import FrameReader, FrameWriter
from .run_dir import RunDirectory

_INT64 = struct.Struct("<q")


class ControlEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One decision of the hub about a submitted command."""

    seq: int
    """Counts up by 1 over the run's life."""
    time: float
    id: str
    command: AnyCommand
    issuer: str
    reason: str = ""
    expires_at: float | None = None
    generation: int = 0
    """Generation of the settings after this entry."""
    rejected: str | None = None
    """Why it was refused; the engine ignores such entries."""


_decoder = msgspec.msgpack.Decoder(ControlEntry)


def find_decision(run: RunDirectory, id_: str) -> ControlEntry | None:
    """What was decided about a command, also when no hub is there to ask."""
    for payload in FrameReader(run.control):
        entry = _decoder.decode(payload)
        if entry.id == id_:
            return entry
    return None


class Doorbell:
    """An int64 shared between the hub and the engine."""

    def __init__(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if os.fstat(descriptor).st_size < _INT64.size:
                os.ftruncate(descriptor, _INT64.size)
            self._map = mmap.mmap(descriptor, _INT64.size)
        finally:
            os.close(descriptor)

    def ring(self, seq: int) -> None:
        """Tell the engine that entries up to `seq` are readable."""
        _INT64.pack_into(self._map, 0, seq)

    def read(self) -> int:
        """The newest sequence number rung."""
        return int(_INT64.unpack_from(self._map, 0)[0])


class ControlWriter:
    """The hub's side."""

    def __init__(self, run: RunDirectory) -> None:
        self._frames = FrameWriter(run.control, run.control.with_suffix(".lock"))
        self.entries = [_decoder.decode(payload) for payload in self._frames.recovered]
        self._bell = Doorbell(run.doorbell)
        self._bell.ring(self.last_seq)

    @property
    def last_seq(self) -> int:
        """Sequence number of the newest entry; 0 when there is none."""
        return self.entries[-1].seq if self.entries else 0

    def append(self, entry: ControlEntry) -> None:
        """Store an entry durably, then ring.

        Raises:
            OSError: it is not durable; the file is as before and nothing was rung.
        """
        start = self._frames.append(msgspec.msgpack.encode(entry))
        try:
            self._frames.sync()
        except OSError:
            self._frames.cut(start)
            raise
        self.entries.append(entry)
        self._bell.ring(entry.seq)

    def close(self) -> None:
        """Give the files back."""
        self._frames.close()


class ControlReader:
    """The engine's side."""

    def __init__(self, run: RunDirectory) -> None:
        self._frames = FrameReader(run.control)
        self._bell = Doorbell(run.doorbell)
        self.seen_seq = 0

    def waiting(self) -> int:
        """The newest control sequence number; costs one memory read."""
        return self._bell.read()

    def take(self, up_to: int) -> list[ControlEntry]:
        """Unseen entries with `seq` ≤ `up_to`, in order; rejected ones are left out."""
        due = list(self._due(up_to))
        if due:
            self.seen_seq = due[-1].seq
        return [entry for entry in due if entry.rejected is None]

    def _due(self, up_to: int) -> Iterator[ControlEntry]:
        while frames := self._frames.read():
            for start, payload in frames:
                entry = _decoder.decode(payload)
                if entry.seq > up_to:
                    # Not rung yet, so its writer may still take it back: read it again later.
                    self._frames.offset = start
                    return
                yield entry
