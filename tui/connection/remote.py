"""A run on another machine, through ssh: one ordered stream that resumes where it was cut.

The bridge over there sends the journal strictly in order, so nothing has to be merged or asked for
again: after a cut the viewer names the last record it has, and the stream goes on behind it.
Commands that were not answered are sent again under the same id, which is decided only once.
"""

from __future__ import annotations

import asyncio
import random
import time
import zlib
from collections.abc import Callable
from contextlib import suppress

from fttui.engine.errors import EngineGone, FttuiError, ProtocolMismatch
from fttui.engine.protocol.codec import (
    PROTOCOL_VERSION,
    DecodeError,
    decode_beat,
    decode_hub,
    encode,
)
from fttui.engine.protocol.commands import AnyCommand
from fttui.engine.protocol.record_blocks import BadBlock, unpack_block
from fttui.engine.protocol.requests import (
    Accepted,
    AnyHubMessage,
    Beat,
    ClientMessage,
    ConfigTexts,
    ControlGiven,
    FetchConfig,
    FetchReport,
    Refused,
    Rejected,
    ReleaseControl,
    ReportText,
    SubmitCommand,
    TakeControl,
    Welcome,
)
from fttui.engine.protocol.ssh_protocol import (
    BEAT_S,
    Failed,
    FrameKind,
    JournalPosition,
    Open,
    Preview,
    Pulse,
    Records,
    decode_bridge_message,
)

from ..view_model.connection_port import (
    BeatArrived,
    CommandAnswered,
    Deliver,
    HistoryProgressed,
    Link,
    LinkChanged,
    PreviewArrived,
    RecordsArrived,
)
from .correlator import RequestCorrelator
from .pending_commands import PendingCommands
from .record_merger import RecordMerger, deliveries
from .ssh.backoff import Backoff
from .ssh.remote_host import RemoteHost, Unreachable
from .ssh.ssh_connection import HANDSHAKE_S, RemoteFailed, SshConnection
from .viewer_identity import issuer, new_command_id, new_viewer

STALE_S = 3.0
LOST_S = 10.0
ASK_S = 8.0
REPEAT_S = 3.0
LEAVE_S = 1.0
EXPIRES_S = 30.0
"""As for a local viewer, by the other machine's clock."""


class RemoteSession:
    """A viewer of a run on another machine."""

    def __init__(self, far: RemoteHost, *, read_only: bool = False, one_shot: bool = False) -> None:
        self.run_id = ""
        self.viewer = new_viewer()
        self.issuer = issuer()
        self.read_only = read_only
        self.one_shot = one_shot
        self.engine_alive = False
        """When the run was opened."""
        self._far = far
        self._run: str | None = None
        self._first: SshConnection | None = None
        self._connection: SshConnection | None = None
        self._merger = RecordMerger()
        self._seen: JournalPosition | None = None
        self._deliver: Deliver = lambda _: None
        self._link: Link | None = None
        self._detail = ""
        self._pending = PendingCommands()
        self._questions = RequestCorrelator()
        self._backoff = Backoff(random.random)
        self._heard = 0.0
        self._head_seq = 0
        self._clock_offset_s = 0.0
        self._holds_control = False
        self._served = False
        self._closed = asyncio.Event()

    async def open(self, connection: SshConnection, run: str | None) -> None:
        """The first connection, made while a person can still be asked things.

        Raises:
            FttuiError: the run cannot be served.
        """
        self._run = run
        await self._have_served(connection)
        self._first = connection

    async def _have_served(self, connection: SshConnection) -> None:
        asked = Open(
            version=PROTOCOL_VERSION,
            viewer=self.viewer,
            issuer=self.issuer,
            run=self._run,
            read_only=self.read_only,
            one_shot=self.one_shot and self._seen is None,
            seen=self._seen,
        )
        opened = await connection.open(asked)
        self.run_id = self._run = opened.run
        self.read_only = bool(opened.why_read_only)
        self._head_seq = opened.last_seq
        self._clock_offset_s = opened.time - time.time()
        self._served = self.engine_alive = opened.engine_alive
        if self.one_shot and self._seen is None:
            self._merger.last_seq = opened.from_seq

    async def listen(self, deliver: Deliver) -> None:
        """Deliver everything from the first record on, through any number of cuts.

        Raises:
            FttuiError: it cannot be gone on with; trying again by itself would not help.
        """
        self._deliver = deliver
        self._to(Link.CONNECTING)
        while not self._closed.is_set():
            try:
                await self._converse(await self._connected())
            except Unreachable as lost:
                if not self._closed.is_set():
                    wait_s = self._backoff.failed(time.monotonic())
                    self._to(Link.LOST, f"{lost}; trying again")
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self._closed.wait(), wait_s)

    async def _connected(self) -> SshConnection:
        """The first connection, or a new one that asks nobody anything."""
        connection, self._first = self._first, None
        if connection is not None:
            connection.attach()
            return connection
        connection = SshConnection(self._far, may_prompt=False, shared=self._backoff.failures < 2)
        connection.attach()
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                await self._have_served(connection)
        except TimeoutError:
            await connection.close()
            raise Unreachable(f"{self._far.host} did not answer in {HANDSHAKE_S:g} s") from None
        except BaseException:
            await connection.close()
            raise
        return connection

    async def _converse(self, connection: SshConnection) -> None:
        self._connection = connection
        self._heard = time.monotonic()
        self._backoff.connected(self._heard)
        self._to(Link.LIVE)
        self._send_pending(unanswered_since=time.monotonic())
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._hear(connection))
                group.create_task(self._keep(connection))
        except* FttuiError as errors:
            raise errors.exceptions[0] from None
        finally:
            self._connection = None
            self._questions.give_up()
            await connection.close()

    async def _hear(self, connection: SshConnection) -> None:
        while True:
            channel, payload = await connection.next()
            self._heard = time.monotonic()
            try:
                self._take(channel, payload)
            except (DecodeError, BadBlock) as error:
                raise ProtocolMismatch(
                    f"{self._far.host} sent what this version cannot read: {error}"
                ) from None
            if channel == FrameKind.TALK:
                connection.acknowledge(connection.received_bytes)
            await asyncio.sleep(0)

    def _take(self, channel: int, payload: bytes) -> None:
        match channel:
            case FrameKind.BEAT:
                self._on_beat(decode_beat(payload))
            case FrameKind.HUB:
                self._on_reply(decode_hub(payload))
            case FrameKind.TALK:
                self._on_talk(payload)

    def _on_talk(self, payload: bytes) -> None:
        match decode_bridge_message(payload):
            case Records() as records:
                self._on_records(records)
            case Preview() as preview if preview.head_seq > self._merger.last_seq:
                self._on_preview(preview)
            case Pulse() as pulse:
                self._on_pulse(pulse)
            case Failed(code=code, reason=reason):
                raise RemoteFailed(f"{self._far.host}: {reason}", code)

    def _on_records(self, records: Records) -> None:
        payloads = unpack_block(records.block)
        for delivery in deliveries(self._merger.history(payloads)):
            self._deliver(delivery)
        self._seen = JournalPosition(
            seq=self._merger.last_seq, crc=zlib.crc32(payloads[-1]), offset=records.offset
        )
        self._head_seq = max(records.head_seq, self._merger.last_seq)
        self._deliver(HistoryProgressed(seq=self._merger.last_seq, head_seq=self._head_seq))

    def _on_preview(self, preview: Preview) -> None:
        for delivery in deliveries(unpack_block(preview.block)):
            if isinstance(delivery, RecordsArrived):
                self._deliver(
                    PreviewArrived(
                        records=delivery.records,
                        head_seq=preview.head_seq,
                        exact=preview.exact,
                        extends=preview.extends,
                    )
                )

    def _on_pulse(self, pulse: Pulse) -> None:
        # The least delayed of all is nearest the truth.
        self._clock_offset_s = max(self._clock_offset_s, pulse.time - time.time())
        self._head_seq = max(self._head_seq, pulse.head_seq)
        self._served = pulse.served or pulse.engine_alive
        self._look_at_end()

    def _look_at_end(self) -> None:
        if not self._served and self._merger.last_seq >= self._head_seq:
            self._to(Link.ENDED, "the run has ended")

    def _on_beat(self, beat: Beat) -> None:
        if beat.controller_viewer is not None:
            self._holds_control = beat.controller_viewer == self.viewer
        self._deliver(BeatArrived(beat))

    def _on_reply(self, reply: AnyHubMessage) -> None:
        match reply:
            case Welcome(controller=controller):
                if self._holds_control and controller is None:
                    self._send(self._take_over(self._questions.next_ref(), if_free=True))
                self._questions.repeat(self._send)
                self._send_pending(unanswered_since=time.monotonic())
            case Accepted(id=id_):
                self._answered(CommandAnswered(id=id_, accepted=True))
            case Rejected(id=id_, reason=reason):
                self._answered(CommandAnswered(id=id_, accepted=False, reason=reason))
            case _:
                self._questions.answered(reply)

    def _answered(self, answer: CommandAnswered) -> None:
        if self._pending.answered(answer.id):
            self._deliver(answer)

    async def _keep(self, connection: SshConnection) -> None:
        """Say that this viewer lives, repeat what was not answered, notice silence."""
        while not self._closed.is_set():
            silent_s = time.monotonic() - self._heard
            if silent_s > LOST_S:
                raise Unreachable(f"nothing heard from {self._far.host} for {LOST_S:g} s")
            if silent_s > STALE_S:
                self._to(Link.STALE)
            elif self._served or self._merger.last_seq < self._head_seq:
                self._to(Link.LIVE)
            connection.acknowledge(connection.received_bytes)
            self._send_pending(unanswered_since=time.monotonic() - REPEAT_S)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._closed.wait(), BEAT_S / 2)
        raise Unreachable("closed")

    # what a person asks for

    def submit(
        self, command: AnyCommand, *, reason: str = "", if_generation: int | None = None
    ) -> str:
        """Send a command and return its id at once; the answer comes as `CommandAnswered`."""
        message = SubmitCommand(
            ref=0,
            id=new_command_id(),
            command=command,
            viewer=self.viewer,
            issuer=self.issuer,
            reason=reason,
            expires_at=time.time() + self._clock_offset_s + EXPIRES_S,
            if_generation=if_generation,
            one_shot=self.one_shot,
        )
        self._pending.add(message)
        self._send_pending(unanswered_since=0.0)
        return message.id

    async def take_control(self) -> str | None:
        """Become the controller; returns why not, or None."""
        try:
            reply = await self._ask(self._take_over)
        except EngineGone as error:
            return str(error)
        self._holds_control = isinstance(reply, ControlGiven)
        return None if self._holds_control else _reason(reply)

    async def release_control(self) -> None:
        """Give control up."""
        self._holds_control = False
        with suppress(EngineGone):
            await self._ask(lambda ref: ReleaseControl(ref=ref, viewer=self.viewer))

    async def fetch_report(self, report: str) -> str:
        """An anomaly report as Markdown.

        Raises:
            FttuiError: there is none of that name, or nobody answers.
        """
        reply = await self._ask(lambda ref: FetchReport(ref=ref, report=report))
        if isinstance(reply, ReportText):
            return reply.markdown
        raise FttuiError(_reason(reply))

    async def fetch_configs(self) -> ConfigTexts:
        """The run's configuration, as its folder over there has it.

        Raises:
            FttuiError: nobody answers.
        """
        reply = await self._ask(lambda ref: FetchConfig(ref=ref))
        if isinstance(reply, ConfigTexts):
            return reply
        raise FttuiError(_reason(reply))

    async def close(self) -> None:
        """Leave; the run goes on."""
        if not (self.read_only or self.one_shot) and self._connection is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(LEAVE_S):
                    await self.release_control()
        self._closed.set()
        if self._first is not None:
            await self._first.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_S):
                while self._connection is not None:
                    await asyncio.sleep(0.01)

    def _take_over(self, ref: int, *, if_free: bool = False) -> TakeControl:
        return TakeControl(ref=ref, viewer=self.viewer, issuer=self.issuer, if_free=if_free)

    def _send(self, message: ClientMessage) -> None:
        if self._connection is not None:
            self._connection.send(FrameKind.HUB, encode(message))

    def _send_pending(self, unanswered_since: float) -> None:
        if self._connection is not None:
            for message in self._pending.due(unanswered_since, time.monotonic()):
                self._send(message)

    async def _ask(self, make: Callable[[int], ClientMessage]) -> AnyHubMessage:
        if self._connection is None:
            raise EngineGone(f"no connection to {self._far.host} now; it is being restored")
        return await self._questions.ask(make, self._send, ASK_S)

    def _to(self, link: Link, detail: str = "") -> None:
        if (link, detail) != (self._link, self._detail):
            self._link, self._detail = link, detail
            self._deliver(LinkChanged(link, detail))


def _reason(reply: AnyHubMessage) -> str:
    return reply.reason if isinstance(reply, Refused) else f"unexpected answer: {reply}"
