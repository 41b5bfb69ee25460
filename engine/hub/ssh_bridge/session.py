"""The session of the ssh bridge: serves one run to one remote viewer."""

from __future__ import annotations

import time
from dataclasses import dataclass

import zmq

from ...protocol.codec import PROTOCOL_VERSION
from ...protocol.record_blocks import pack_block
from ...protocol.requests import Hello
from ...protocol.ssh_protocol import (
    BEAT_S,
    FrameKind,
    Open,
    Opened,
    Preview,
    Pulse,
    Received,
    Records,
)
from ...run.journal_preview import MinMaxSampler, sample_records
from ...run.journal_summary import summarize_records
from ...run.processes.heartbeat import beat_from_folder
from ...run.processes.identity import boot_id, boot_seconds
from ...run.processes.marks import read_engine_status
from ...run.run_dir import RunDirectory
from ...run.run_index import read_ends
from .flow_control import SendWindow
from .hub_client import OWN_REF, HubClient
from .journal_feed import JournalFeed
from .journal_tail import JournalTail
from .request_router import RequestRouter
from .stream import FrameStream

SILENT_S = 30.0
"""Seconds without a message after which the viewer counts as gone, even if ssh is connected."""
LAGGING_BYTES = 2 * 1024 * 1024
"""Unread bytes of the journal above which the viewer first gets a preview, a choice of records."""
_EXACT_BYTES = 8 * LAGGING_BYTES
_CHUNK_BYTES = (64 * 1024, 2 * 1024 * 1024)
"""Smallest and largest number of journal bytes packed into one block."""
_BUSY_POLL_MS, _IDLE_POLL_MS = 20, 100
_BUSY_S = 2.0
_HUB_SILENT_S = 2.5


@dataclass
class _Timers:
    """When the next heartbeat is due and when viewer and hub were last heard, monotonic seconds."""

    pulse: float = 0.0
    heard: float = 0.0
    hub_heard: float = 0.0
    busy_until: float = 0.0


class BridgeSession:
    """Sends one viewer the journal, heartbeats and previews, and answers its requests.

    Raises:
        JournalReplaced: the journal does not hold the newest record that the viewer has.
    """

    def __init__(
        self, stream: FrameStream, run: RunDirectory, asked: Open, why_read_only: str
    ) -> None:
        self._stream = stream
        self._run = run
        self._window = SendWindow(stream.sent_bytes)
        self._tail = JournalTail(run.journal)
        self._feed = JournalFeed(run.journal)
        if asked.seen is not None:
            self._feed.resume(asked.seen)
        elif asked.one_shot:
            self._feed.skip_to_end()
        self._hub = HubClient(run, _hello(asked, why_read_only))
        self._router = RequestRouter(run, self._hub, why_read_only)
        now = time.monotonic()
        self._timers = _Timers(heard=now, hub_heard=now)
        self._lags = False
        self._shrinks_by = 4.0
        self._sampler: MinMaxSampler | None = None
        self._hub.maintain(now)
        self._tail.refresh()
        stream.send_message(self._opened(why_read_only))

    def _opened(self, why_read_only: str) -> Opened:
        engine = read_engine_status(self._run)
        journal = summarize_records(read_ends(self._run.journal))
        return Opened(
            run=self._run.id,
            incarnation=engine.incarnation,
            timeline=journal.timeline,
            from_seq=self._feed.last_seq,
            last_seq=self._tail.seq,
            state=journal.status.state(engine),
            engine_alive=self._hub.engine_alive,
            time=time.time(),
            why_read_only=why_read_only,
            boot=boot_id(),
            boot_s=boot_seconds(),
            lr_schedule=journal.learning_rate.schedule,
            lr_scale=journal.learning_rate.scale,
        )

    def turn(self) -> bool:
        """Wait briefly, then send what is due; return False if the viewer has been silent too long.

        Raises:
            JournalReplaced: the journal was truncated or replaced.
            ViewerGone: the viewer closed the stream.
        """
        self._wait()
        now = time.monotonic()
        self._hub.maintain(now)
        self._forward_from_hub(now)
        if now >= self._timers.pulse:
            self._timers.pulse = now + BEAT_S
            self._pulse(now)
        self._send_records(now)
        self._stream.flush()
        return now - self._timers.heard < SILENT_S

    def _wait(self) -> None:
        poller = zmq.Poller()
        self._stream.register(poller)
        for socket in self._hub.sockets:
            poller.register(socket, zmq.POLLIN)
        working = self._sampler is not None
        busy = time.monotonic() < self._timers.busy_until
        poller.poll(0 if working else _BUSY_POLL_MS if busy else _IDLE_POLL_MS)

    def received(self, message: Received) -> None:
        """Take in an acknowledgement of received bytes."""
        self._timers.heard = time.monotonic()
        self._window.acknowledge(message.total_bytes, self._timers.heard)

    def asked(self, payload: bytes) -> None:
        """Answer a request of the viewer or pass it on to the hub."""
        self._timers.heard = time.monotonic()
        if (reply := self._router.answer(payload)) is not None:
            self._stream.send_message(reply, FrameKind.HUB)

    def close(self) -> None:
        """Close the connection to the hub."""
        self._hub.close()

    def _forward_from_hub(self, now: float) -> None:
        for reply in self._hub.replies():
            self._stream.send_message(reply, FrameKind.HUB)
        for beat in self._hub.beats():
            self._timers.hub_heard = now
            self._stream.send(FrameKind.BEAT, beat)

    def _pulse(self, now: float) -> None:
        self._tail.refresh()
        if now - self._timers.hub_heard > _HUB_SILENT_S or not self._hub.connected:
            beat = beat_from_folder(self._run, self._tail.seq, now=time.time())
            self._stream.send_message(beat, FrameKind.BEAT)
        pulse = Pulse(
            time=time.time(),
            head_seq=self._tail.seq,
            served=self._hub.connected,
            engine_alive=self._hub.engine_alive,
        )
        self._stream.send_message(pulse)
        if self._lags:
            self._preview(self._tail.newest_steps(), extends=True)

    def _send_records(self, now: float) -> None:
        self._window.sent = self._stream.sent_bytes
        remaining = self._feed.remaining_bytes()
        self._picture(remaining)
        if not remaining or self._window.room_bytes <= 0:
            return
        if (batch := self._feed.next(self._chunk_bytes())) is not None:
            self._timers.busy_until = now + _BUSY_S
            block = pack_block(batch.payloads)
            self._shrinks_by = sum(map(len, batch.payloads)) / len(block)
            head = max(self._tail.seq, batch.last_seq)
            self._stream.send_message(Records(block=block, head_seq=head, offset=batch.offset))

    def _chunk_bytes(self) -> int:
        """Return the number of journal bytes that fill half the window when packed."""
        smallest, largest = _CHUNK_BYTES
        wanted = self._window.limit_bytes * self._shrinks_by / 2
        return int(min(max(wanted, smallest), largest))

    def _picture(self, remaining_bytes: int) -> None:
        """Send previews while more than `LAGGING_BYTES` of the journal were not sent yet.

        The first one, a sample of the records, is sent at once. If very much remains, a second one
        follows after a scan, with the extremes of each of many parts.
        """
        lags = remaining_bytes > LAGGING_BYTES
        if lags and not self._lags:
            self._preview(sample_records(self._run.journal, self._feed.offset))
            if remaining_bytes > _EXACT_BYTES:
                place = self._feed.offset, self._feed.last_seq, self._tail.seq
                self._sampler = MinMaxSampler(self._run.journal, *place)
        self._lags = lags
        if self._sampler is not None and self._sampler.advance():
            if lags:
                self._preview(self._sampler.records(), exact=True)
            self._sampler = None

    def _preview(self, records: list[bytes], *, exact: bool = False, extends: bool = False) -> None:
        if not records:
            return
        block = pack_block(records)
        self._stream.send_message(
            Preview(block=block, head_seq=self._tail.seq, exact=exact, extends=extends)
        )


def _hello(asked: Open, why_read_only: str) -> Hello:
    return Hello(
        ref=OWN_REF,
        version=PROTOCOL_VERSION,
        viewer=asked.viewer,
        issuer=asked.issuer,
        read_only=bool(why_read_only),
    )
