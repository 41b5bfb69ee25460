"""The control journal: the hub's decisions on commands, which the engine reads.

The hub appends an entry, syncs it, then rings the doorbell: it writes the entry's sequence number
to an int64 in a memory-mapped file. The engine reads that integer at every micro-batch and opens
the journal only when the integer has risen.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import mmap
import os
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from ..protocol.codec import UNDECODABLE
from ..protocol.commands import AnyCommand
from .folder.open_folder import OpenFolder, open_plain
from .journal import FrameReader, FrameWriter, JournalLocked
from .run_dir import RunDirectory

log = logging.getLogger(__name__)

_INT64 = struct.Struct("<q")
_MOST_ENTRIES = 2**53
"""A doorbell of a folder from elsewhere may hold any number; a larger one is not believed."""
_LOOK_EVERY_S = 0.5
"""Seconds between two looks whether the doorbell was removed."""


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


class HeldFile:
    """Recognises that a file was replaced by another one of its name.

    The file is held open, because a new file may get the inode of one that nobody holds.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor: int | None = None
        self._path = path
        self.replaced()

    def replaced(self) -> bool:
        """Whether the name leads to another file than at the last call; False without a file."""
        place = place_of_file(self._path)
        if place is None or (before := self._place()) == place:
            return False
        try:
            opened = open_plain(self._path, os.O_RDONLY, shown=self._path)
        except OSError:
            return False
        self.close()
        self._descriptor = opened
        return before is not None

    def _place(self) -> tuple[int, int] | None:
        if self._descriptor is None:
            return None
        found = os.fstat(self._descriptor)
        return found.st_dev, found.st_ino

    def close(self) -> None:
        """Release the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor = None

    def __del__(self) -> None:
        """Release the file with its last reader, which no process has to close."""
        self.close()


def place_of_file(path: Path) -> tuple[int, int] | None:
    """Return what identifies the file of a name, (device, inode); None if there is none."""
    try:
        found = os.stat(path, follow_symlinks=False)
    except OSError:
        return None
    return found.st_dev, found.st_ino


_decoder = msgspec.msgpack.Decoder(ControlEntry)


def _decoded(payload: bytes) -> ControlEntry | None:
    """Return the entry of a frame; None if this version cannot read it.

    A newer version may have accepted a command that this one does not know.
    """
    try:
        return _decoder.decode(payload)
    except UNDECODABLE as error:
        log.warning("control.log: an entry cannot be read and is left out: %s", error)
        return None


def find_decision(run: RunDirectory, id_: str) -> ControlEntry | None:
    """Return the stored decision on the command with this id; None if there is none."""
    for payload in FrameReader(run.control):
        entry = _decoded(payload)
        if entry is not None and entry.id == id_:
            return entry
    return None


class Doorbell:
    """An int64 in a memory-mapped file, written by the hub and read by the engine."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._map, self._place = self._mapped()

    def _mapped(self) -> tuple[mmap.mmap, tuple[int, int]]:
        with OpenFolder(self._path.parent) as folder:
            descriptor = folder.open_file(self._path.name, os.O_RDWR | os.O_CREAT)
        try:
            found = os.fstat(descriptor)
            if found.st_size < _INT64.size:
                os.ftruncate(descriptor, _INT64.size)
            return mmap.mmap(descriptor, _INT64.size), (found.st_dev, found.st_ino)
        finally:
            os.close(descriptor)

    def keep_in_place(self) -> None:
        """Map the file anew, with the number known so far, if it was removed or replaced.

        Raises:
            OSError: the folder is missing or cannot be written.
        """
        if place_of_file(self._path) != self._place:
            known = self.read()
            self._map, self._place = self._mapped()
            self.ring(max(known, self.read()))

    def ring(self, seq: int) -> None:
        """Announce to the engine that entries up to `seq` can be read."""
        _INT64.pack_into(self._map, 0, seq)

    def read(self) -> int:
        """Return the newest sequence number announced."""
        return int(_INT64.unpack_from(self._map, 0)[0])


@contextmanager
def decision_lock(run: RunDirectory, patience_s: float = 2.0) -> Iterator[None]:
    """Hold the lock under which the hub decides on a command and the engine ends.

    A command is so either decided before the end of the run, which then gives it an outcome, or
    refused after it. If the other process does not release the lock in time, this one goes on.
    """
    with run.open() as folder:
        opened = folder.open_file("control.gate", os.O_RDWR | os.O_CREAT)
    try:
        deadline = time.monotonic() + patience_s
        while not _locked(opened) and time.monotonic() < deadline:
            time.sleep(0.005)
        yield
    finally:
        os.close(opened)


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


class ControlWriter:
    """Appends decisions to the control journal; used by the hub."""

    def __init__(self, run: RunDirectory) -> None:
        self._frames = FrameWriter(run.control, run.control.with_suffix(".lock"))
        found = map(_decoded, self._frames.recovered)
        self.entries = [entry for entry in found if entry is not None]
        self._bell = Doorbell(run.doorbell)
        rung = self._bell.read()
        self._lost_seq = rung if 0 <= rung < _MOST_ENTRIES else 0
        """The newest number that an earlier hub announced. A control journal that was removed since
        lacks that entry, but the number must not be used again."""
        self._bell.ring(self.last_seq)

    @property
    def last_seq(self) -> int:
        """The newest sequence number of the run; 0 if there is none."""
        return max(self.entries[-1].seq if self.entries else 0, self._lost_seq)

    def keep_in_place(self) -> bool:
        """Write the control journal again if it was removed; return whether it was.

        Raises:
            OSError: the folder is missing or cannot be written.
            JournalLocked: another hub has taken the lock meanwhile.
        """
        written = self._frames.keep_in_place()
        self._bell.keep_in_place()
        return written

    def append(self, entry: ControlEntry) -> None:
        """Store an entry durably, then ring the doorbell.

        Raises:
            OSError: the entry could not be stored; the file is unchanged and was not announced.
        """
        try:
            self.keep_in_place()
        except JournalLocked as error:
            raise OSError(errno.EBUSY, str(error)) from None
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

    def __init__(self, run: RunDirectory, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._run = run
        self._frames = FrameReader(run.control)
        self._held = HeldFile(run.control)
        self._bell = Doorbell(run.doorbell)
        self._monotonic = monotonic
        self._look_at = 0.0
        self.seen_seq = 0

    def waiting(self) -> int:
        """Return the newest announced sequence number; costs one memory read."""
        if (now := self._monotonic()) >= self._look_at:
            self._look_at = now + _LOOK_EVERY_S
            with suppress(OSError):  # without a folder nothing is announced; it is looked for again
                self._bell.keep_in_place()
        return self._bell.read()

    def take(self, up_to: int) -> list[ControlEntry]:
        """Return the unread accepted entries with `seq` ≤ `up_to`, in order."""
        due = list(self._due(up_to))
        if due:
            self.seen_seq = due[-1].seq
        return [entry for entry in due if entry.rejected is None]

    def _due(self, up_to: int) -> Iterator[ControlEntry]:
        self._start_anew_if_replaced()
        while frames := self._frames.read():
            for start, payload in frames:
                entry = _decoded(payload)
                if entry is None or entry.seq <= self.seen_seq:
                    continue
                if entry.seq > up_to:
                    # Not announced yet, so its writer may still remove it: read it again later.
                    self._frames.offset = start
                    return
                yield entry

    def _start_anew_if_replaced(self) -> None:
        """Read from the start if the control journal was removed and written again."""
        if self._held.replaced():
            self._frames.offset = 0
