"""Journal writer: receives events through a deque and writes them in a thread of its own."""

from __future__ import annotations

import logging
import os
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress

from ..protocol.codec import DecodeError, decode_record, encode, peek_seq
from ..protocol.events import AnyEvent, LogEmitted, Record
from ..run.journal import FrameWriter
from ..run.processes.marks import read_endpoint
from ..run.run_dir import RunDirectory

log = logging.getLogger(__name__)

_POLL_S = 0.02
_SYNC_EVERY_S = 1.0
_HUB_CHECK_EVERY_S = 1.0
_MAX_WAITING = 200_000
_RESERVE = "journal.reserve"
_RESERVE_BYTES = 512 * 1024


def _numbered(payloads: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield the payloads that are records, each with its sequence number."""
    for payload in payloads:
        with suppress(DecodeError):
            yield peek_seq(payload), payload


class JournalWriter:
    """Journals events in order and keeps a hub running; only rank 0 has one.

    `emit` may be called from any thread and never waits for the disk.
    """

    def __init__(self, run: RunDirectory, launch_hub: Callable[[RunDirectory], object]) -> None:
        self._run = run
        self._launch_hub = launch_hub
        self._journal = FrameWriter(run.journal, run.journal_lock)
        self.recovered = self._journal.recovered
        """The encoded records that earlier processes of this run journaled."""
        self._seq = peek_seq(self.recovered[-1]) if self.recovered else 0
        self._mend()
        self._seq = peek_seq(self.recovered[-1]) if self.recovered else 0
        self._waiting: deque[tuple[float, int, int, AnyEvent]] = deque()
        self._keep_reserve()
        self._stop = threading.Event()
        self._dropped = 0
        self._degraded = False
        self._unsynced = False
        self._synced_at = self._hub_checked_at = 0.0
        self._hub_backoff_s = 1.0
        self._thread = threading.Thread(target=self._write, name="journal", daemon=True)
        self._thread.start()

    def _mend(self) -> None:
        """Append the records behind a damaged part again, with a log event for each damaged one."""
        behind = dict(_numbered(self._journal.cut_off))
        last = decode_record(self.recovered[-1]) if self.recovered else None
        payloads = []
        for seq in range(self._seq + 1, max(behind, default=0) + 1):
            text = f"this record of the journal was damaged; see {self._journal.kept_in}"
            stand_in = Record(
                seq=seq,
                time=last.time if last else time.time(),
                step=last.step if last else 0,
                timeline=last.timeline if last else 1,
                event=LogEmitted(level="error", text=text),
            )
            payloads.append(behind.get(seq) or encode(stand_in))
        if payloads:
            self._journal.append(*payloads)
            self.recovered += payloads

    def emit(self, event: AnyEvent, *, step: int, timeline: int) -> None:
        """Queue an event for the journal."""
        self._waiting.append((time.time(), step, timeline, event))

    def close(self) -> None:
        """Write and sync all events, then close the journal."""
        self._stop.set()
        self._thread.join()
        self._drain()
        self._free_reserve()
        self._drain()
        if self._waiting:
            log.error("journal: the disk is full; the last %d events are lost", len(self._waiting))
        self._sync()
        self._journal.close()

    def _keep_reserve(self) -> None:
        """Reserve disk space, so that the last events can be written even if the disk is full."""
        try:
            with self._run.open() as folder:
                opened = folder.open_file(_RESERVE, os.O_RDWR | os.O_CREAT)
            try:
                os.posix_fallocate(opened, 0, _RESERVE_BYTES)
            finally:
                os.close(opened)
        except OSError as error:
            log.warning("journal: disk space for the last events cannot be reserved: %s", error)

    def _free_reserve(self) -> None:
        with suppress(OSError), self._run.open() as folder:
            folder.remove(_RESERVE)

    def _write(self) -> None:
        while not self._stop.wait(_POLL_S):
            try:
                self._drain()
            except Exception:
                log.exception("journal: an event could not be written")
            now = time.monotonic()
            if now - self._synced_at > _SYNC_EVERY_S:
                self._synced_at = now
                self._sync()
            if now - self._hub_checked_at > self._hub_backoff_s:
                self._hub_checked_at = now
                self._keep_hub()

    def _drain(self) -> None:
        batch = list(self._take())
        if not batch:
            return
        payloads = []
        for offset, (at, step, timeline, event) in enumerate(batch, start=1):
            record = Record(
                seq=self._seq + offset, time=at, step=step, timeline=timeline, event=event
            )
            payloads.append(encode(record))
        try:
            self._journal.append(*payloads)
        except OSError as error:
            self._keep_for_later(batch, error)
            return
        self._seq += len(batch)
        if self._degraded:
            self._recover(batch[-1])

    def _take(self) -> list[tuple[float, int, int, AnyEvent]]:
        return [self._waiting.popleft() for _ in range(min(len(self._waiting), 4096))]

    def _keep_for_later(
        self, batch: list[tuple[float, int, int, AnyEvent]], error: OSError
    ) -> None:
        if not self._degraded:
            log.error("journal: %s; events are kept in memory until they can be written", error)
        self._degraded = True
        self._waiting.extendleft(reversed(batch))
        while len(self._waiting) > _MAX_WAITING:
            self._waiting.popleft()
            self._dropped += 1
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
            self._unsynced = True
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
            log.warning("hub: cannot be started: %s", error)
