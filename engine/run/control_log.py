"""The control journal: the hub's decisions on commands, which the engine reads.

The hub appends an entry, syncs it, then rings the doorbell: it writes the entry's sequence number
to a file of eight bytes. The engine reads that number at every micro-batch and opens the journal
only when it has risen.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

import msgspec

from ..protocol.codec import UNDECODABLE
from ..protocol.commands import AnyCommand
from ..protocol.settings import Leash
from .folder.open_folder import OpenFolder, open_plain
from .journal import FrameReader, FrameWriter, JournalLocked
from .run_dir import RunDirectory

log = logging.getLogger(__name__)

_INT64 = struct.Struct("<q")
_MOST_ENTRIES = 2**53
"""A doorbell of a folder from elsewhere may hold any number; a larger one is not believed."""
_LOOK_EVERY_S = 0.5
"""Seconds between two looks whether the doorbell is another file."""


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
    leash: Leash | None = None
    """Limits within which the engine carries out the command; None unless an agent sent it."""
    proposal: str = ""
    """Name of the proposal that it makes, confirms or declines; empty for any other command."""
    expires_boot_s: float | None = None
    """As in `SubmitCommand`; for a proposal, its own end."""
    boot: str = ""
    """As in `SubmitCommand`."""


class HeldFile:
    """Holds a file open, and recognises that another one took its name.

    It is held, because a new file may get the inode of one that nobody holds.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: FileIO | None = None
        self.replaced()

    def replaced(self) -> bool:
        """Hold the file of this name; return whether it took the place of one held before.

        False if it is the one that is held, if none was held, and if there is no file now or it
        cannot be opened.
        """
        place = place_of_file(self._path)
        if place is None or (before := self._place()) == place:
            return False
        try:
            opened = open_plain(self._path, os.O_RDONLY, shown=self._path)
        except OSError:
            return False
        self.close()
        self._file = FileIO(opened)
        return before is not None

    @property
    def is_open(self) -> bool:
        """Whether a file is held, because `replaced` has found one of this name."""
        return self._file is not None

    def _place(self) -> tuple[int, int] | None:
        return None if self._file is None else _place_of(self._file.fileno())

    def read(self, size_bytes: int) -> bytes:
        """Return the first `size_bytes` of the file; fewer if it is shorter, none without a file.

        Raises:
            OSError: the file cannot be read.
        """
        return b"" if self._file is None else os.pread(self._file.fileno(), size_bytes, 0)

    def close(self) -> None:
        """Release the file."""
        if self._file is not None:
            self._file.close()
        self._file = None


def _place_of(descriptor: int) -> tuple[int, int]:
    found = os.fstat(descriptor)
    return found.st_dev, found.st_ino


def place_of_file(path: Path) -> tuple[int, int] | None:
    """Return the (device, inode) that identify the file at a path; a link is not followed.

    None if there is no file, or it cannot be looked at.
    """
    try:
        found = os.stat(path, follow_symlinks=False)
    except OSError:
        return None
    return found.st_dev, found.st_ino


_decoder = msgspec.msgpack.Decoder(ControlEntry)


def _decoded(payload: bytes) -> ControlEntry | None:
    """Return the entry of a frame; None, with a warning in the log, if it cannot be read.

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


def _rung(data: bytes) -> int:
    """Return the sequence number in the content of a doorbell; 0 if no hub can have written it."""
    if len(data) != _INT64.size:
        return 0
    number: int = _INT64.unpack(data)[0]
    return number if 0 <= number < _MOST_ENTRIES else 0


class Doorbell:
    """The hub's end of the doorbell: a file with the newest sequence number.

    It is written and read by system calls: a memory map would end the process by a signal once
    somebody truncates the file, or if a full disk has no room for its page.

    Raises:
        OSError: the file cannot be opened or read; `keep_in_place` and `read` raise it, too.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = self._opened()
        self._known = self.read()

    def _opened(self) -> FileIO:
        with OpenFolder(self._path.parent) as folder:
            descriptor = folder.open_file(self._path.name, os.O_RDWR | os.O_CREAT)
        return FileIO(descriptor, "r+")

    def keep_in_place(self) -> None:
        """Write the number again if the file was removed, replaced, truncated or changed."""
        if place_of_file(self._path) != _place_of(self._file.fileno()):
            before, self._file = self._file, self._opened()
            before.close()
        if self.read() != self._known:
            self._write()

    def ring(self, seq: int) -> None:
        """Announce to the engine that entries up to `seq` can be read.

        A failed write is logged, and `keep_in_place` writes the number again.
        """
        self._known = seq
        try:
            self._write()
        except OSError as error:
            log.error(
                "the engine could not be notified of a new command; the hub tries again: %s", error
            )

    def _write(self) -> None:
        os.pwrite(self._file.fileno(), _INT64.pack(self._known), 0)

    def read(self) -> int:
        """Return the newest sequence number announced."""
        return _rung(os.pread(self._file.fileno(), _INT64.size, 0))

    def close(self) -> None:
        """Close the file."""
        self._file.close()


@contextmanager
def decision_lock(run: RunDirectory, patience_s: float = 2.0) -> Iterator[None]:
    """Hold the lock under which the hub decides on a command and the engine ends.

    So a command is either decided on before the end of the run, which then gives it an outcome if
    it was accepted, or it is refused after the end. If the other process does not release the lock
    within `patience_s`, or there is no file to lock, this one continues without it: a stop must be
    obeyed and an end recorded even on a disk that fails.
    """
    opened = _gate(run)
    try:
        deadline = time.monotonic() + patience_s
        while opened is not None and not _locked(opened) and time.monotonic() < deadline:
            time.sleep(0.005)
        yield
    finally:
        if opened is not None:
            os.close(opened)


def _gate(run: RunDirectory) -> int | None:
    try:
        with run.open() as folder:
            return folder.open_file("control.gate", os.O_RDWR | os.O_CREAT)
    except OSError as error:
        log.warning("control.gate, the lock for decisions on commands, cannot be opened: %s", error)
        return None


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


class ControlWriter:
    """Appends decisions to the control journal; used by the hub.

    Raises:
        JournalLocked: another process has the lock of the control journal.
        OSError: control journal or doorbell cannot be opened.
    """

    def __init__(self, run: RunDirectory) -> None:
        self._frames = FrameWriter(run.control, run.control.with_suffix(".lock"))
        found = map(_decoded, self._frames.recovered)
        self.entries = [entry for entry in found if entry is not None]
        self._bell = Doorbell(run.doorbell)
        self._lost_seq = self._bell.read()
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
            OSError: the entry could not be stored; the file is unchanged, nothing was announced.
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
        """Close the control journal, its lock and the doorbell."""
        self._frames.close()
        self._bell.close()


class ControlReader:
    """Reads accepted commands from the control journal; used by the engine.

    A hub that finds neither the journal nor the doorbell of an earlier one begins again at 1. So
    the reader takes each entry once by its id, and the numbers that it returns never fall: after a
    new beginning it adds the highest number before it to each number of the journal.
    """

    def __init__(self, run: RunDirectory, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._run = run
        self._frames = FrameReader(run.control)
        self._held = HeldFile(run.control)
        self._bell = HeldFile(run.doorbell)
        self._monotonic = monotonic
        self._look_at = 0.0
        self._rung = b""
        """The content of the doorbell at the last look."""
        self._newest = self._before = 0
        """The newest number in this journal, and the highest one returned for those before it."""
        self._taken: set[str] = set()
        self.seen_seq = 0

    def __enter__(self) -> ControlReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the files."""
        self._held.close()
        self._bell.close()

    def waiting(self) -> int:
        """Return the newest announced sequence number; 0 before the first.

        It costs one system call, and twice a second a few more, to notice a new doorbell file.
        """
        begins_again = False
        if (now := self._monotonic()) >= self._look_at or not self._bell.is_open:
            self._look_at = now + _LOOK_EVERY_S
            begins_again = self._bell.replaced()
        try:
            rung = self._bell.read(_INT64.size)
        except OSError:  # nothing can be learned from it now
            return self._before + self._newest
        if begins_again or rung != self._rung:
            self._rung = rung
            newest = _rung(rung)
            if begins_again or newest < self._newest:
                self._before += self._newest
            self._newest = newest
        return self._before + self._newest

    def take_all(self) -> list[ControlEntry]:
        """Return all unread accepted entries, in order, also those that were not announced yet.

        Call it under `decision_lock`, so that the hub does not remove the last one meanwhile.
        """
        return self.take(_MOST_ENTRIES)

    def take(self, up_to: int) -> list[ControlEntry]:
        """Return the unread accepted entries, in order, up to a number that `waiting` returned."""
        if up_to < _MOST_ENTRIES:
            self._newest = max(self._newest, up_to - self._before)
            self._rung = b""  # the next look compares the doorbell with this number
        due = list(self._due(up_to - self._before))
        if due:
            self.seen_seq = self._before + due[-1].seq
        return [entry for entry in due if entry.rejected is None]

    def _due(self, up_to: int) -> Iterator[ControlEntry]:
        self._start_anew_if_replaced()
        while frames := self._frames.read():
            for start, payload in frames:
                entry = _decoded(payload)
                if entry is None or entry.id in self._taken:
                    continue
                if entry.seq > up_to:
                    # Not announced yet, so its writer may still remove it: read it again later.
                    self._frames.offset = start
                    return
                self._taken.add(entry.id)
                yield entry

    def _start_anew_if_replaced(self) -> None:
        """Read from the start if the control journal was removed and written again."""
        if self._held.replaced():
            self._frames.offset = 0
