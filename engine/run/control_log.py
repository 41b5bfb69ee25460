"""The control journal: the hub's decisions on commands, which the engine reads.

The hub appends an entry, syncs it, then rings the doorbell: it writes the entry's sequence number
to an int64 in a memory-mapped file. The engine reads that integer at every micro-batch and opens
the journal only when the integer has risen.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import msgspec

from ..protocol.commands import AnyCommand
from .folder.open_folder import OpenFolder
from .journal import FrameReader, FrameWriter
from .run_dir import RunDirectory

_INT64 = struct.Struct("<q")


class ControlEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One decision of the hub on a submitted command."""

    seq: int
    """Sequence number; rises by 1 with each entry of the run."""
    time: float
    id: str
    command: AnyCommand
    issuer: str
    reason: str = ""
    expires_at: float | None = None
    generation: int = 0
    """Generation of the settings after this entry."""
    rejected: str | None = None
    """Why the command was refused, or None; the engine ignores refused commands."""


_decoder = msgspec.msgpack.Decoder(ControlEntry)


def find_decision(run: RunDirectory, id_: str) -> ControlEntry | None:
    """Return the decision on a command from the file, without a hub; None if there is none."""
    for payload in FrameReader(run.control):
        entry = _decoder.decode(payload)
        if entry.id == id_:
            return entry
    return None


class Doorbell:
    """An int64 in a memory-mapped file, written by the hub and read by the engine."""

    def __init__(self, path: Path) -> None:
        with OpenFolder(path.parent) as folder:
            descriptor = folder.open_file(path.name, os.O_RDWR | os.O_CREAT)
        try:
            if os.fstat(descriptor).st_size < _INT64.size:
                os.ftruncate(descriptor, _INT64.size)
            self._map = mmap.mmap(descriptor, _INT64.size)
        finally:
            os.close(descriptor)

    def ring(self, seq: int) -> None:
        """Announce to the engine that entries up to `seq` can be read."""
        _INT64.pack_into(self._map, 0, seq)

    def read(self) -> int:
        """Return the newest sequence number announced."""
        return int(_INT64.unpack_from(self._map, 0)[0])


class ControlWriter:
    """Appends decisions to the control journal; used by the hub."""

    def __init__(self, run: RunDirectory) -> None:
        self._frames = FrameWriter(run.control, run.control.with_suffix(".lock"))
        self.entries = [_decoder.decode(payload) for payload in self._frames.recovered]
        self._bell = Doorbell(run.doorbell)
        self._bell.ring(self.last_seq)

    @property
    def last_seq(self) -> int:
        """The sequence number of the newest entry; 0 if there is none."""
        return self.entries[-1].seq if self.entries else 0

    def append(self, entry: ControlEntry) -> None:
        """Store an entry durably, then ring the doorbell.

        Raises:
            OSError: the entry could not be stored; the file is unchanged and was not announced.
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
        """Close the control journal and its lock."""
        self._frames.close()


class ControlReader:
    """Reads accepted commands from the control journal; used by the engine."""

    def __init__(self, run: RunDirectory) -> None:
        self._frames = FrameReader(run.control)
        self._bell = Doorbell(run.doorbell)
        self.seen_seq = 0

    def waiting(self) -> int:
        """Return the newest announced sequence number; costs one memory read."""
        return self._bell.read()

    def take(self, up_to: int) -> list[ControlEntry]:
        """Return the unread accepted entries with `seq` ≤ `up_to`, in order."""
        due = list(self._due(up_to))
        if due:
            self.seen_seq = due[-1].seq
        return [entry for entry in due if entry.rejected is None]

    def _due(self, up_to: int) -> Iterator[ControlEntry]:
        while frames := self._frames.read():
            for start, payload in frames:
                entry = _decoder.decode(payload)
                if entry.seq > up_to:
                    # Not announced yet, so its writer may still remove it: read it again later.
                    self._frames.offset = start
                    return
                yield entry
