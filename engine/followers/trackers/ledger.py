"""What is delivered to one destination of a run: a small file in the run folder.

It names no address and holds no secret: a destination is a hash, and what is shown of it is what
the tracker's own page shows in its title.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from types import TracebackType

import msgspec

from ...errors import FttuiError
from ...run.folder.open_folder import read_plain
from ...run.run_dir import SMALL_FILE_BYTES, RunDirectory

FOLDER = "trackers"
"""The folder of these files in a run folder."""
_VERSION = 1


class Delivered(msgspec.Struct, kw_only=True):
    """What is delivered of one timeline."""

    through_seq: int = 0
    """Sequence number of the last record that was delivered."""
    closed: bool = False
    """Whether a later timeline follows, so that nothing can come any more."""
    settled: bool = True
    """Whether the tracker run was closed in order; otherwise the tracker may have lost the end."""
    noted: dict[str, int | str] = {}
    """What the sink keeps about its tracker run, such as the size of a file."""


class Ledger(msgspec.Struct, kw_only=True):
    """What is delivered to one destination."""

    version: int = _VERSION
    tracker: str
    shown: str
    """The destination in words, without user names and passwords."""
    attempt: int = 1
    """Raised by one each time the user asks to deliver everything again."""
    timelines: dict[int, Delivered] = {}
    left_out: dict[str, int] = {}
    """What the tracker could not take, by reason."""

    def of(self, timeline: int) -> Delivered:
        """Return the entry of a timeline, which is made if it is missing."""
        return self.timelines.setdefault(timeline, Delivered())

    def count(self, reason: str, number: int = 1) -> None:
        """Count what the tracker cannot take."""
        self.left_out[reason] = self.left_out.get(reason, 0) + number


class Busy(FttuiError):
    """Another process delivers to the same destination."""


class LedgerFile:
    """The file of a ledger, locked while it is open.

    Raises:
        Busy: another process has the lock.
        OSError: the file or its folder cannot be used, or is a link.
    """

    def __init__(self, run: RunDirectory, tracker: str, destination: str, shown: str) -> None:
        digest = hashlib.sha256(destination.encode()).hexdigest()[:8]
        self._name = f"{FOLDER}/{tracker}-{digest}.json"
        self._path = run.path / self._name
        self._folder = run.open()
        self._folder.make_folder(FOLDER)
        self._lock = self._folder.open_file(f"{self._name}.lock", os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.close()
            raise Busy(
                f"another process delivers {run.id} to {tracker} already; expected to be the only "
                "one; wait until it has ended, or end it (its log is in the folder logs)"
            ) from None
        self.ledger = self._read(tracker, shown)

    def _read(self, tracker: str, shown: str) -> Ledger:
        fresh = Ledger(tracker=tracker, shown=shown)
        try:
            data = read_plain(self._path, SMALL_FILE_BYTES)
        except FileNotFoundError:
            return fresh
        try:
            found = msgspec.json.decode(data, type=Ledger)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise self._unusable(f"it cannot be read ({error})") from None
        if found.version != _VERSION or found.tracker != tracker:
            raise self._unusable(f"it is of version {found.version} for {found.tracker}")
        return found

    def _unusable(self, why: str) -> FttuiError:
        return FttuiError(
            f"{self._path} should say what is delivered, but {why}; expected version {_VERSION}; "
            "remove the file if the tracker may get everything a second time"
        )

    def save(self) -> None:
        """Write the ledger durably.

        Raises:
            OSError: it cannot be written.
        """
        self._folder.write(self._name, msgspec.json.encode(self.ledger))

    def close(self) -> None:
        """Release the lock."""
        os.close(self._lock)
        self._folder.close()

    def __enter__(self) -> LedgerFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.close()
