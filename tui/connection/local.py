"""A live run over its hub: history by pull, news by subscription, commands with one answer each.

The journal is the truth: whatever the stream loses is pulled. Every restart of the hub, whoever
restarts it, is survived by going on from the last sequence number; commands that were not answered
are sent again under the same id, which the hub decides only once.
"""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import Callable
from contextlib import suppress

import msgspec

from fttui.engine.errors import EngineGone, FttuiError, NoSuchRun, ProtocolMismatch
from fttui.engine.hub.ssh_bridge.journal_feed import JournalReplaced
from fttui.engine.protocol.codec import (
    BEAT_TOPIC,
    EVENT_TOPIC,
    PROTOCOL_VERSION,
    decode_beat,
    peek_seq,
    unpack_history,
)
from fttui.engine.protocol.commands import AnyCommand
from fttui.engine.protocol.requests import (
    Accepted,
    AnyHubMessage,
    Beat,
    ClientMessage,
    ControlGiven,
    FetchHistory,
    FetchReport,
    Hello,
    HistoryChunk,
    Ping,
    Refused,
    Rejected,
    ReleaseControl,
    ReportText,
    SubmitCommand,
    TakeControl,
    Welcome,
)
from fttui.engine.run.journal import FrameReader
from fttui.engine.run.process_marks import Endpoint, read_endpoint, read_engine
from fttui.engine.run.run_dir import RunDirectory

from ..view_model.connection_port import (
    BeatArrived,
    CommandAnswered,
    Deliver,
    HistoryProgressed,
    Link,
    LinkChanged,
)
from .history_reader import read_history
from .hub_connection import HubConnection, reach_hub
from .offline import decided_on_disk, read_rest
from .pending_commands import PendingCommands
from .record_merger import RecordMerger, deliveries
from .viewer_identity import issuer, new_command_id, new_viewer

STALE_S = 3.0
LOST_S = 10.0
ASK_S = 5.0
PING_S = 2.0
TICK_S = 0.1
_READ_BYTES = 512 * 1024
LEAVE_S = 1.0
RETRY_S = 1.0
EXPIRES_S = 30.0
"""A command that reaches the hub later than this, because the link was down, is refused: its moment
is over. Once accepted it does not expire, however long a step or an evaluation takes."""


class _ConnectionDead(Exception):
    """This connection is of no use any more."""


class LocalSession:
    """A viewer of a live run."""

    def __init__(
        self, run: RunDirectory, *, read_only: bool = False, one_shot: bool = False
    ) -> None:
        self.run_id = run.id
        self.viewer = new_viewer()
        self.issuer = issuer()
        self.read_only = read_only
        self.one_shot = one_shot
        """Commands do not make this viewer the controller."""
        self._run = run
        self._skip_history = one_shot
        self._merger = RecordMerger()
        self._last_crc: int | None = None
        """crc32 of the newest record shown; None while there is none."""
        self._deliver: Deliver = lambda _: None
        self._link: Link | None = None
        self._line: HubConnection | None = None
        self._greeted = asyncio.Event()
        self._behind = asyncio.Event()
        self._pending = PendingCommands()
        self._refusal = ""
        """Why the hub is not talked to at all."""
        self._heard = 0.0
        self._beat: Beat | None = None
        self._closed = asyncio.Event()
        self._since = time.monotonic()
        self._met = False
        """A hub has been talked to."""

    async def listen(self, deliver: Deliver) -> None:
        """Deliver everything from the first record on, through any number of hub restarts.

        Raises:
            ProtocolMismatch: a script's hub speaks another major version; a person reads along.
            JournalReplaced: the run's journal is not the one seen so far.
        """
        self._deliver = deliver
        self._to(Link.CONNECTING)
        if not self._skip_history:
            read = await read_history(self._run, deliver)
            self._merger.last_seq, self._last_crc = read.seq, read.crc
        while not self._closed.is_set():
            self._require_folder()
            try:
                endpoint = await reach_hub(self._run)
            except (FttuiError, OSError) as error:
                self._to(Link.LOST, str(error))
                await asyncio.sleep(RETRY_S)
                continue
            if endpoint is None:
                await self._end_from_disk()
                return
            try:
                await self._converse(endpoint)
            except ProtocolMismatch as mismatch:
                if self.one_shot:
                    raise
                await self._read_along(f"{mismatch}; until then this viewer only reads along")
                return

    def _require_folder(self) -> None:
        """See that the run is where it was.

        Raises:
            NoSuchRun: it was moved or removed.
        """
        if not self._run.path.exists():
            place = self._run.path.absolute()
            raise NoSuchRun(
                f"the run folder {place} was moved or removed. An engine at work goes on training, "
                f"but saves nothing until the folder is back: mv NEW_PLACE {place}"
            )

    async def _read_along(self, why: str) -> None:
        """Show what the journal of a live run says, without its hub."""
        self.read_only, self._refusal = True, why
        for id_ in self._pending.ids():
            self._answered(CommandAnswered(id=id_, accepted=False, reason=why))
        reader = FrameReader(self._run.journal)
        while not self._closed.is_set():
            engine = read_engine(self._run)
            if engine is None or not engine.alive:
                await self._end_from_disk()
                return
            while payloads := reader.read_payloads(_READ_BYTES):
                self._show(self._merger.history(payloads))
                await asyncio.sleep(0)
            self._to(Link.LIVE, why)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._closed.wait(), TICK_S)

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
            expires_at=time.time() + EXPIRES_S,
            if_generation=if_generation,
            one_shot=self.one_shot,
        )
        self._pending.add(message)
        if self._link is Link.ENDED or self._refusal:
            refused = CommandAnswered(id=message.id, accepted=False, reason=self._refusal)
            answer = refused if self._refusal else decided_on_disk(self._run, message.id)
            asyncio.get_running_loop().call_soon(self._answered, answer)
        self._send_pending(unanswered_since=0.0)
        return message.id

    async def take_control(self) -> str | None:
        """Become the controller; returns why not, or None."""
        try:
            reply = await self._ask(self._take_over)
        except EngineGone as error:
            return str(error)
        return None if isinstance(reply, ControlGiven) else _reason(reply)

    def _take_over(self, ref: int, *, if_free: bool = False) -> TakeControl:
        return TakeControl(ref=ref, viewer=self.viewer, issuer=self.issuer, if_free=if_free)

    async def release_control(self) -> None:
        """Give control up."""
        with suppress(EngineGone):
            await self._ask(lambda ref: ReleaseControl(ref=ref, viewer=self.viewer))

    async def fetch_report(self, report: str) -> str:
        """An anomaly report as Markdown.

        Raises:
            FttuiError: there is none of that name, or the hub does not answer.
        """
        reply = await self._ask(lambda ref: FetchReport(ref=ref, report=report))
        if isinstance(reply, ReportText):
            return reply.markdown
        raise FttuiError(_reason(reply))

    async def close(self) -> None:
        """Leave; the run goes on."""
        if not (self.read_only or self.one_shot):
            # Asked even when the last heartbeat gave control to nobody: it may lag behind a
            # command, and releasing what one does not hold changes nothing.
            with suppress(TimeoutError):
                async with asyncio.timeout(LEAVE_S):
                    await self.release_control()
        self._closed.set()
        # The tasks of the conversation own the sockets: they close them, not we.
        with suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_S):
                while self._line is not None:
                    await asyncio.sleep(0)

    async def _end_from_disk(self) -> None:
        for delivery in read_rest(self._run, self._merger):
            self._deliver(delivery)
            await asyncio.sleep(0)
        for id_ in self._pending.ids():
            self._answered(decided_on_disk(self._run, id_))
        self._to(Link.ENDED, "the run has ended")

    async def _converse(self, endpoint: Endpoint) -> None:
        """Talk to one hub process until it is gone or silent for too long."""
        line = self._line = HubConnection(endpoint)
        # Asked now: the new hub's first heartbeat may say that nobody has control.
        had_control = self._has_control()
        self._greeted.clear()
        self._heard = time.monotonic()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(line.listen(self._on_reply))
                group.create_task(self._hear_events(line))
                group.create_task(self._greet_and_pull(line, had_control))
                group.create_task(self._keep(line))
        except* _ConnectionDead as dead:
            if not self._closed.is_set():
                self._to(Link.LOST, str(dead.exceptions[0]))
        except* (ProtocolMismatch, JournalReplaced) as final:
            raise final.exceptions[0] from None
        finally:
            self._line = None
            line.close()

    async def _hear_events(self, line: HubConnection) -> None:
        while True:
            batch = await line.events()
            self._hear()
            self._show(self._merger.live(f[1] for f in batch if f[0] == EVENT_TOPIC))
            for frames in batch:
                if frames[0] == BEAT_TOPIC:
                    self._on_beat(decode_beat(frames[1]))
            if self._merger.gap:
                self._behind.set()

    def _on_beat(self, beat: Beat) -> None:
        if not beat.engine_alive and (engine := read_engine(self._run)) and engine.alive:
            # The hub looks once a second, and an engine that goes on with the run has just come.
            beat = msgspec.structs.replace(beat, engine_alive=True)
        self._beat = beat
        if beat.last_seq > self._merger.last_seq:
            self._behind.set()
        self._deliver(BeatArrived(beat))

    def _on_reply(self, reply: AnyHubMessage) -> None:
        self._hear()
        match reply:
            case Accepted(id=id_):
                self._answered(CommandAnswered(id=id_, accepted=True))
            case Rejected(id=id_, reason=reason):
                self._answered(CommandAnswered(id=id_, accepted=False, reason=reason))

    def _answered(self, answer: CommandAnswered) -> None:
        if self._pending.answered(answer.id):
            self._deliver(answer)

    async def _greet_and_pull(self, line: HubConnection, had_control: bool) -> None:
        try:
            await self._greet(line, had_control)
            await self._confirm(line)
            while True:
                await self._pull(line)
                await self._behind.wait()
        except TimeoutError:
            raise _ConnectionDead(f"the hub did not answer within {ASK_S:g} s") from None

    async def _greet(self, line: HubConnection, had_control: bool) -> None:
        hello = Hello(
            ref=line.next_ref(),
            version=PROTOCOL_VERSION,
            viewer=self.viewer,
            issuer=self.issuer,
            read_only=self.read_only,
        )
        reply = await line.ask(hello, ASK_S)
        if not isinstance(reply, Welcome):
            raise ProtocolMismatch(_reason(reply))
        self._hear()
        if self._skip_history:
            self._merger.last_seq = reply.last_seq
            self._skip_history = False
        if had_control and reply.controller is None:
            line.post(self._take_over(line.next_ref(), if_free=True))
        self._greeted.set()
        self._to(Link.LIVE)
        self._send_pending(unanswered_since=time.monotonic())

    async def _confirm(self, line: HubConnection) -> None:
        """See that the journal still holds the newest record shown, in its place.

        Raises:
            JournalReplaced: it holds another one there, or none.
        """
        seq, crc = self._merger.last_seq, self._last_crc
        if crc is None:
            return
        ask = FetchHistory(ref=line.next_ref(), after_seq=seq - 1, max_bytes=1)
        chunk = await line.ask(ask, ASK_S)
        found = list(unpack_history(chunk.blob)) if isinstance(chunk, HistoryChunk) else []
        if not found or (peek_seq(found[0]), zlib.crc32(found[0])) != (seq, crc):
            raise JournalReplaced(
                f"record {seq}, the last one seen, is not in {self._run.journal} (any more): it "
                "lost records or was replaced; attach again to see what it holds now"
            )

    async def _pull(self, line: HubConnection) -> None:
        """Fetch the journal from the last known record to its head."""
        self._behind.clear()
        while True:
            after = self._merger.last_seq
            chunk = await line.ask(FetchHistory(ref=line.next_ref(), after_seq=after), ASK_S)
            self._hear()
            if not isinstance(chunk, HistoryChunk):
                raise _ConnectionDead(f"no history: {_reason(chunk)}")
            self._show(self._merger.history(unpack_history(chunk.blob)))
            if chunk.blob:
                progress = HistoryProgressed(seq=self._merger.last_seq, head_seq=chunk.head_seq)
                self._deliver(progress)
            if self._merger.last_seq >= chunk.head_seq or not chunk.blob:
                return
            await asyncio.sleep(0)

    def _show(self, payloads: list[bytes]) -> None:
        if payloads:
            self._last_crc = zlib.crc32(payloads[-1])
        for delivery in deliveries(payloads):
            self._deliver(delivery)

    async def _keep(self, line: HubConnection) -> None:
        """Ping, repeat what was not answered, notice silence and the end of the hub."""
        ping_at = 0.0
        while True:
            now = time.monotonic()
            if self._closed.is_set():
                raise _ConnectionDead("closed")
            if not self._is_current(line.endpoint):
                raise _ConnectionDead("the hub is gone")
            if now - self._heard > LOST_S:
                raise _ConnectionDead(f"nothing heard for {LOST_S:g} s")
            if self._greeted.is_set():
                self._to(Link.STALE if now - self._heard > STALE_S else Link.LIVE)
                if now >= ping_at:
                    ping_at = now + PING_S
                    line.post(Ping(ref=line.next_ref()))
                self._send_pending(unanswered_since=now - PING_S)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._closed.wait(), TICK_S)

    def _is_current(self, endpoint: Endpoint) -> bool:
        return endpoint.alive and read_endpoint(self._run) == endpoint

    def _send_pending(self, unanswered_since: float) -> None:
        if self._line is None or not self._greeted.is_set():
            return
        for message in self._pending.due(unanswered_since, time.monotonic()):
            self._line.post(message)

    async def _ask(self, make: Callable[[int], ClientMessage]) -> AnyHubMessage:
        """One request outside the stream.

        Raises:
            EngineGone: no hub answers now.
        """
        line = self._line
        if line is None or not self._greeted.is_set():
            raise EngineGone("no connection to the run now; it is being restored")
        try:
            return await line.ask(make(line.next_ref()), ASK_S)
        except TimeoutError:
            raise EngineGone(f"the hub did not answer within {ASK_S:g} s") from None

    def _has_control(self) -> bool:
        return self._beat is not None and self._beat.controller_viewer == self.viewer

    def _hear(self) -> None:
        self._heard = time.monotonic()

    def _to(self, link: Link, detail: str = "") -> None:
        if link is Link.LOST and self._since + LOST_S > time.monotonic() and not self._met:
            link = Link.CONNECTING  # a hub that is coming up is not lost
        self._met |= link is Link.LIVE
        if link is not self._link:
            self._link = link
            self._deliver(LinkChanged(link, detail))


def _reason(reply: AnyHubMessage) -> str:
    return reply.reason if isinstance(reply, Refused) else f"unexpected answer: {reply}"
