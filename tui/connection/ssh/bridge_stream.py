"""The conversation with the bridge on a remote host over one ssh connection."""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from fttui.engine.errors import FttuiError
from fttui.engine.protocol.codec import decode_beat, decode_hub, encode
from fttui.engine.protocol.record_blocks import unpack_block
from fttui.engine.protocol.requests import ClientMessage
from fttui.engine.protocol.settings import LearningRate
from fttui.engine.protocol.ssh_protocol import (
    BEAT_S,
    Failed,
    FrameKind,
    JournalPosition,
    Opened,
    Preview,
    Pulse,
    Records,
    decode_bridge_message,
)
from fttui.engine.run.processes.identity import boot_seconds

from ...view_model.connection_port import HistoryProgressed, Link, PreviewArrived, RecordsArrived
from ..session.record_merger import deliveries
from ..session.session_base import SessionBase
from ..session.silence import LOST_S, SilenceTimer
from .remote_host import Unreachable
from .ssh_connection import RemoteFailed, SshConnection

REPEAT_S = 3.0
"""Seconds before an unanswered command is sent again."""


@dataclass
class RemoteRun:
    """The state of a remote run as its bridge last reported it, kept over lost connections."""

    name: str | None
    """The run's id once it is known, before that what the user called it; None for the newest."""
    engine_alive: bool = False
    """Whether an engine worked on the run when the connection was opened."""
    served: bool = False
    """Whether more records may come, because an engine or a hub of the run is alive."""
    head_seq: int = 0
    """The newest sequence number in the journal."""
    clock_offset_s: float = 0.0
    """The clock of the remote host minus that of this machine, in seconds."""
    boot: str = ""
    """The boot id of the remote host; empty if its bridge does not send it."""
    boot_offset_s: float = 0.0
    """The uptime of the remote host minus that of this machine, in seconds."""
    learning_rate: LearningRate = field(default_factory=LearningRate)
    """The learning rate in force when the connection was opened."""
    received: JournalPosition | None = None
    """The newest record delivered, after which the next connection continues."""

    def opened(self, opened: Opened, now: float) -> None:
        """Take over the state that the bridge reports on opening, at Unix seconds `now`."""
        self.name = opened.run
        self.engine_alive = self.served = opened.engine_alive
        self.head_seq = opened.last_seq
        self.clock_offset_s = opened.time - now
        self.boot = opened.boot
        self.boot_offset_s = opened.boot_s - boot_seconds()
        self.learning_rate = LearningRate(opened.lr_schedule, opened.lr_scale)

    def pulse(self, pulse: Pulse, now: float) -> None:
        """Take over the regular report of the bridge, received at Unix seconds `now`."""
        # Delay on the way makes the offset look smaller, so the largest one is the most exact.
        self.clock_offset_s = max(self.clock_offset_s, pulse.time - now)
        self.head_seq = max(self.head_seq, pulse.head_seq)
        self.served = pulse.served or pulse.engine_alive


class BridgeStream:
    """Receives records, heartbeats and replies from one bridge for a session.

    The bridge sends the journal strictly in order, so nothing has to be reordered or asked for.
    """

    def __init__(
        self,
        connection: SshConnection,
        run: RemoteRun,
        session: SessionBase,
        closed: asyncio.Event,
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Make a stream over a connection through which the run has been opened.

        Args:
            connection: the connection to the bridge; closed when `run()` returns.
            run: updated with what the bridge reports.
            session: receives everything.
            closed: set when the session is closed.
            clock: returns Unix seconds.
            monotonic: returns monotonic seconds.
        """
        self.receiving = False
        self.connection = connection
        self._run = run
        self._session = session
        self._closed = closed
        self._clock = clock
        self._silence = SilenceTimer(monotonic)

    async def run(self) -> None:
        """Receive until the stream ends.

        Raises:
            Unreachable: the connection was lost or went silent, or the session was closed; trying
                again may help.
            FttuiError: the bridge cannot serve the run any more.
        """
        self._silence.received()
        self.receiving = True
        self._session.feed.set_link(Link.LIVE)
        self._session.send_commands()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._receive())
                group.create_task(self._supervise())
        except* FttuiError as errors:
            raise errors.exceptions[0] from None
        finally:
            self.receiving = False
            self._session.correlator.connection_lost()
            await self.connection.close()

    def send(self, message: ClientMessage) -> None:
        """Send a message to the hub through the bridge."""
        self.connection.send(FrameKind.HUB, encode(message))

    async def _receive(self) -> None:
        connection = self.connection
        while True:
            kind, payload = await connection.next()
            self._silence.received()
            with connection.reading():
                self._on_frame(kind, payload)
            if kind == FrameKind.TALK:
                connection.acknowledge(connection.received_bytes)
            await asyncio.sleep(0)

    def _on_frame(self, kind: int, payload: bytes) -> None:
        match kind:
            case FrameKind.BEAT:
                # Not reported by the bridge: whether the hub that sent it knows this viewer yet.
                self._session.on_beat(decode_beat(payload), after_welcome=False)
            case FrameKind.HUB:
                self._session.on_reply(decode_hub(payload))
            case FrameKind.TALK:
                self._on_talk(payload)

    def _on_talk(self, payload: bytes) -> None:
        match decode_bridge_message(payload):
            case Records() as records:
                self._on_records(records)
            case Preview() as preview if preview.head_seq > self._session.feed.last_seq:
                self._on_preview(preview)
            case Pulse() as pulse:
                self._run.pulse(pulse, self._clock())
                if not self._expects_more:
                    self._session.feed.set_link(Link.ENDED, "the run has ended")
            case Failed(code=code, reason=reason):
                raise RemoteFailed(f"{self.connection.host}: {reason}", code)

    def _on_records(self, records: Records) -> None:
        feed, run = self._session.feed, self._run
        payloads = unpack_block(records.block)
        feed.history(payloads)
        run.received = JournalPosition(
            seq=feed.last_seq, crc=zlib.crc32(payloads[-1]), offset=records.offset
        )
        run.head_seq = max(records.head_seq, feed.last_seq)
        feed.deliver(HistoryProgressed(seq=feed.last_seq, head_seq=run.head_seq))

    def _on_preview(self, preview: Preview) -> None:
        for delivery in deliveries(unpack_block(preview.block)):
            if isinstance(delivery, RecordsArrived):
                self._session.feed.deliver(
                    PreviewArrived(
                        records=delivery.records,
                        head_seq=preview.head_seq,
                        exact=preview.exact,
                        extends=preview.extends,
                    )
                )

    @property
    def _expects_more(self) -> bool:
        """Whether the run is live, or a part of its journal was not delivered yet."""
        return self._run.served or self._session.feed.last_seq < self._run.head_seq

    async def _supervise(self) -> None:
        """Acknowledge what arrived, send unanswered commands again, and notice silence.

        Raises:
            Unreachable: the connection went silent, or the session was closed.
        """
        while not self._closed.is_set():
            if self._silence.lost:
                raise Unreachable(f"received nothing from {self.connection.host} for {LOST_S:g} s")
            if self._silence.stale:
                self._session.feed.set_link(Link.STALE)
            elif self._expects_more:
                self._session.feed.set_link(Link.LIVE)
            self.connection.acknowledge(self.connection.received_bytes)
            self._session.send_commands(unanswered_s=REPEAT_S)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._closed.wait(), BEAT_S / 2)
        raise Unreachable("closed")
