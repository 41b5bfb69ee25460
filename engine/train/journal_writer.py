"""Journal writer: a thread that writes events, keeps a hub running and restores removed files."""

from __future__ import annotations

import logging
import os
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress

import msgspec

from ..protocol.codec import DecodeError, decode_readable, encode, peek_seq
from ..protocol.events import AnyEvent, LogEmitted, Record
from ..run.folder.folder_keeper import FolderKeeper
from ..run.journal import FrameWriter, JournalLocked
from ..run.processes.marks import read_endpoint
from ..run.run_dir import RunDirectory

log = logging.getLogger(__name__)

_POLL_S = 0.05
"""Seconds between two looks at the queue; each takes the interpreter from the training thread."""
_SYNC_EVERY_S = 1.0
_SYNC_AGAIN_S = (0.0, 0.1, 0.5)
"""Pauses before the attempts to sync the last events."""
_HUB_CHECK_EVERY_S = 1.0
_SYNC_PATIENCE_S = 5.0
_MAX_WAITING = 200_000
_RESERVE = "journal.reserve"
_RESERVE_BYTES = 512 * 1024
_MOST_RECORDS = 2**53
_SMALLEST_FRAME_BYTES = 32
"""A record with its frame is larger, so a damaged part cannot have held more records."""


def _numbered(payloads: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield the payloads that are records, each with its sequence number.

    A journal from elsewhere may hold any number; records with one that no run reaches are skipped.
    """
    for payload in payloads:
        with suppress(DecodeError):
            if (seq := peek_seq(payload)) < _MOST_RECORDS:
                yield seq, payload


def _newest_seq(payloads: Sequence[bytes]) -> int:
    """Return the sequence number of the last record; 0 if there is none."""
    return next((seq for seq, _ in _numbered(reversed(payloads))), 0)


def _encoded(record: Record) -> bytes:
    """Encode a record; if its event cannot be encoded, an error in the log takes its place."""
    try:
        return encode(record)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        text = f"an event ({type(record.event).__name__}) cannot be recorded: {error}"
        return encode(msgspec.structs.replace(record, event=LogEmitted(level="error", text=text)))


class JournalWriter:
    """Journals events in order and keeps a hub running; only rank 0 has one.

    Until `settle`, `emit` may be called from any thread and never waits for the disk.
    """

    def __init__(
        self,
        run: RunDirectory,
        launch_hub: Callable[[RunDirectory], object],
        *,
        in_thread: bool = True,
    ) -> None:
        """Open the journal.

        Args:
            run: the run.
            launch_hub: starts a hub for it.
            in_thread: write in a thread; otherwise each event is written by `emit` itself, and
                `turn` does the rest, for tests that repeat the same order of operations.

        Raises:
            JournalLocked: another engine works on the run.
            OSError: the journal cannot be opened or written.
        """
        self._run = run
        self._in_thread = in_thread
        self._launch_hub = launch_hub
        self._journal = FrameWriter(run.journal, run.journal_lock)
        self.recovered = self._journal.recovered
        """The encoded records that earlier processes of this run journaled."""
        self._mend()
        self._seq = _newest_seq(self.recovered)
        self._waiting: deque[tuple[float, int, int, AnyEvent]] = deque()
        self._sync_requests: deque[threading.Event] = deque()
        self._unreserved = False
        self._keep_reserve()
        self._stop = threading.Event()
        self._wake = threading.Event()
        """Set where somebody waits for the thread, so that it does not sleep on."""
        self._draining = self._closed = False
        self._dropped = 0
        self._degraded = False
        self._unsynced = False
        self._synced_at = self._hub_checked_at = 0.0
        self._hub_backoff_s = 1.0
        self._keeper = FolderKeeper(run)
        self._misplaced = self._fault = ""
        self.folder_losses = 0
        """How often the run folder or its checkpoints were removed and made again."""
        self._thread = threading.Thread(target=self._write, name="journal", daemon=True)
        if in_thread:
            self._thread.start()

    def _mend(self) -> None:
        """Append the records behind a damaged part again, with a log event for each lost record."""
        newest = _newest_seq(self.recovered)
        most = newest + self._journal.cut_off_bytes // _SMALLEST_FRAME_BYTES
        found = dict(_numbered(self._journal.cut_off))
        behind = {seq: payload for seq, payload in found.items() if seq <= most}
        last = decode_readable(self.recovered[-1]) if self.recovered else None

        def stand_in(seq: int, text: str) -> bytes:
            return encode(
                Record(
                    seq=seq,
                    time=last.time if last else time.time(),
                    step=last.step if last else 0,
                    timeline=last.timeline if last else 1,
                    event=LogEmitted(level="error", text=f"{text}; see {self._journal.kept_in}"),
                )
            )

        end = max(behind, default=newest) + 1
        damaged = "this record of the journal was damaged"
        payloads = [behind.get(n) or stand_in(n, damaged) for n in range(newest + 1, end)]
        if strange := len(found) - len(behind):
            text = (
                f"{strange} records behind a damaged part have impossible numbers and were left out"
            )
            payloads.append(stand_in(max(end, newest + 1), text))
        if payloads:
            self._journal.append(*payloads)
            self.recovered += payloads

    def emit(self, event: AnyEvent, *, step: int, timeline: int) -> None:
        """Queue an event for the journal; once the journal is closed, do nothing.

        Without the thread, as after `settle`, the event is written at once.
        """
        if self._closed:
            return
        self._waiting.append((time.time(), step, timeline, event))
        if not self._in_thread and not self._draining:
            self._drain()

    def close(self) -> None:
        """Write and sync all events, then close the journal; a second call does nothing."""
        if self._closed:
            return
        self.settle()
        self._closed = True
        self._free_reserve()
        self._journal.close()
        self._keeper.close()

    def settle(self) -> str:
        """Write and sync all events; return why the run is not on disk, or an empty text.

        That is also so while its folder is moved away, or lacks files that cannot be restored. The
        thread of the writer ends; from now on each event is written when it is emitted.
        """
        self._stop.set()
        self._wake.set()
        if self._in_thread:
            self._thread.join()
            self._in_thread = False
        self._keep_folder()
        self._drain()
        if self._waiting:
            self._free_reserve()
            self._drain()
        if self._waiting:
            count = len(self._waiting)
            log.error("journal: the last %d events cannot be written: %s", count, self._fault)
            return f"the last {count} events could not be written: {self._fault}"
        for pause_s in _SYNC_AGAIN_S:
            time.sleep(pause_s)
            self._sync()
            if not self._unsynced:
                return self._misplaced
        return f"the journal could not be synced to disk: {self._fault}"

    def sync_all(self) -> None:
        """Write and sync the events emitted so far; give up waiting after a few seconds."""
        if not self._in_thread:
            self._drain()
            self._sync()
            return
        done = threading.Event()
        self._sync_requests.append(done)
        self._wake.set()
        done.wait(_SYNC_PATIENCE_S)

    def _keep_reserve(self) -> None:
        """Reserve disk space, so that the last events can be written even if the disk is full.

        If that fails, the log says so once.
        """
        try:
            with self._run.open() as folder:
                opened = folder.open_file(_RESERVE, os.O_RDWR | os.O_CREAT)
            try:
                if os.fstat(opened).st_size < _RESERVE_BYTES:
                    os.posix_fallocate(opened, 0, _RESERVE_BYTES)
            finally:
                os.close(opened)
            self._unreserved = False
        except OSError as error:
            if not self._unreserved:
                log.warning("journal: disk space for the last events cannot be reserved: %s", error)
            self._unreserved = True

    def _free_reserve(self) -> None:
        with suppress(OSError), self._run.open() as folder:
            folder.remove(_RESERVE)

    def _write(self) -> None:
        while True:
            self._wake.wait(_POLL_S)
            if self._stop.is_set():
                return
            self._wake.clear()
            waiting = [self._sync_requests.popleft() for _ in range(len(self._sync_requests))]
            try:
                self._drain()
                if waiting:
                    self._sync()
                self.turn(time.monotonic())
            except Exception:
                # Without this thread, training would continue without being recorded.
                log.exception("journal: an unexpected error; writing continues")
            for done in waiting:
                done.set()

    def turn(self, now: float) -> None:
        """Sync, restore removed files and restart the hub, if due at `now` (monotonic seconds)."""
        if now - self._synced_at > _SYNC_EVERY_S:
            self._synced_at = now
            self._sync()
            self._keep_folder()
        if now - self._hub_checked_at > self._hub_backoff_s:
            self._hub_checked_at = now
            self._keep_hub()

    def _keep_folder(self) -> None:
        """Restore what was removed from the run folder, and log it; called once a second."""
        try:
            report = self._keeper.restore_missing()
            if report.moved_to:
                self._log_once(
                    f"the run folder was moved to {report.moved_to}; nothing can be saved until it "
                    f"is back: mv {report.moved_to} {self._run.path}"
                )
                return
            journal = [self._run.journal.name] if self._journal.keep_in_place() else []
            self._keep_reserve()
        except (OSError, JournalLocked) as error:
            self._log_once(
                f"files are missing in the run folder {self._run.path} and cannot be restored: "
                f"{error}; training continues, but the run may not be saved completely"
            )
            return
        self._misplaced = ""
        self.folder_losses += report.made_again
        if put_back := [*journal, *report.put_back]:
            log.error(
                "removed from the run folder during training, and restored: %s; stop the run "
                "before you remove its files",
                ", ".join(put_back),
            )

    def _log_once(self, text: str) -> None:
        if text != self._misplaced:
            log.error("%s", text)
        self._misplaced = text

    def _drain(self) -> None:
        self._draining = True
        try:
            while batch := self._take():
                if not self._append(batch):
                    return
                if self._in_thread:
                    return
        finally:
            self._draining = False

    def _append(self, batch: list[tuple[float, int, int, AnyEvent]]) -> bool:
        payloads = []
        for offset, (at, step, timeline, event) in enumerate(batch, start=1):
            record = Record(
                seq=self._seq + offset, time=at, step=step, timeline=timeline, event=event
            )
            payloads.append(_encoded(record))
        try:
            self._journal.append(*payloads)
        except OSError as error:
            self._keep_for_later(batch, error)
            return False
        self._seq += len(batch)
        if self._degraded:
            self._recover(batch[-1])
        return True

    def _take(self) -> list[tuple[float, int, int, AnyEvent]]:
        return [self._waiting.popleft() for _ in range(min(len(self._waiting), 4096))]

    def _keep_for_later(
        self, batch: list[tuple[float, int, int, AnyEvent]], error: OSError
    ) -> None:
        first, self._degraded = not self._degraded, True
        self._fault = str(error)
        self._waiting.extendleft(reversed(batch))
        while len(self._waiting) > _MAX_WAITING:
            self._waiting.popleft()
            self._dropped += 1
        if first:
            log.error("journal: %s; events are kept in memory until they can be written", error)
        if self._in_thread:
            self._stop.wait(0.5)

    def _recover(self, last: tuple[float, int, int, AnyEvent]) -> None:
        self._degraded = False
        text = f"the journal could not be written for a while; {self._dropped} events were lost"
        self.emit(LogEmitted(level="warning", text=text), step=last[1], timeline=last[2])
        self._dropped = 0

    def _sync(self) -> None:
        try:
            self._journal.sync()
        except OSError as error:
            if not self._unsynced:
                log.error(
                    "journal: cannot be synced to disk (%s); trying again every second", error
                )
            self._unsynced, self._fault = True, str(error)
        else:
            self._unsynced = False

    def _keep_hub(self) -> None:
        endpoint = read_endpoint(self._run)
        if endpoint is not None and endpoint.alive:
            self._hub_backoff_s = _HUB_CHECK_EVERY_S
            return
        self._hub_backoff_s = min(30.0, self._hub_backoff_s * 2)
        try:
            self._launch_hub(self._run)
        except (OSError, subprocess.SubprocessError) as error:
            log.warning(
                "the hub cannot be started: %s; training continues, the start is repeated", error
            )
