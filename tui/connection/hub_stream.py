"""The conversation with one hub process on this machine, from the greeting to its end."""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import Callable
from contextlib import suppress

import msgspec

from fttui.engine.errors import JournalReplaced, ProtocolMismatch
from fttui.engine.protocol.codec import (
    AGENTS_SINCE,
    BEAT_TOPIC,
    EVENT_TOPIC,
    PROTOCOL_VERSION,
    DecodeError,
    decode_beat,
    peek_seq,
    unpack_history,
)
from fttui.engine.protocol.requests import (
    AnyHubMessage,
    Beat,
    ClientMessage,
    FetchHistory,
    Hello,
    HistoryChunk,
    Ping,
    Welcome,
)
from fttui.engine.run.processes.marks import read_endpoint, read_engine
from fttui.engine.run.run_dir import RunDirectory

from ..view_model.connection_port import HistoryProgressed, Link
from .history_reader import ReadPosition
from .hub_connection import HubConnection
from .session.session_base import SessionBase, reason_of
from .session.silence import LOST_S, SilenceTimer

REPLY_S = 5.0
PING_S = 2.0
"""Seconds between pings, and before an unanswered command is sent again."""
TICK_S = 0.1


class HubLost(Exception):
    """The hub process ended, went silent, or the session is closed; another hub may follow."""


class HubStream:
    """Receives records, heartbeats and replies from one hub process for a session.

    New records come by subscription; whatever the subscription misses is pulled from the journal
    through the hub.
    """

    def __init__(
        self,
        run: RunDirectory,
        connection: HubConnection,
        session: SessionBase,
        closed: asyncio.Event,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Make a stream over a connection that nothing was sent through yet.

        Args:
            run: the run; its process files (endpoint.json, engine.json) are watched.
            connection: the connection to the hub; closed when `run()` returns.
            session: receives everything.
            closed: set when the session is closed.
            monotonic: returns monotonic seconds.
        """
        self.greeted = False
        """Whether the hub has answered this viewer's greeting and takes its requests."""
        self._run = run
        self._connection = connection
        self._session = session
        self._closed = closed
        self._monotonic = monotonic
        self._silence = SilenceTimer(monotonic)
        self._behind = asyncio.Event()
        """Set while the journal has records that the subscription missed and must be pulled."""

    async def run(self) -> None:
        """Receive until the stream ends.

        Raises:
            HubLost: the hub ended or went silent, or the session was closed.
            ProtocolMismatch: the hub speaks another major version.
            JournalReplaced: the run's journal is not the one whose records were delivered.
        """
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._connection.listen(self._on_reply))
                group.create_task(self._receive_events())
                group.create_task(self._greet_and_pull())
                group.create_task(self._supervise())
        except* (HubLost, ProtocolMismatch, JournalReplaced) as ended:
            # A final error outranks the loss of the hub, after which the session would continue.
            raise min(ended.exceptions, key=lambda error: isinstance(error, HubLost)) from None
        finally:
            self.greeted = False
            self._session.correlator.connection_lost()
            self._connection.close()

    def send(self, message: ClientMessage) -> None:
        """Send without waiting; the message is lost if the hub cannot take it now."""
        self._connection.post(message)

    async def _receive_events(self) -> None:
        feed = self._session.feed
        while True:
            batch = await self._connection.events()
            self._silence.received()
            feed.live(frames[1] for frames in batch if frames[0] == EVENT_TOPIC)
            for frames in batch:
                if frames[0] == BEAT_TOPIC:
                    self._on_beat(decode_beat(frames[1]))
            if feed.merger.gap:
                self._behind.set()

    def _on_beat(self, beat: Beat) -> None:
        if not beat.engine_alive and (engine := read_engine(self._run)) and engine.alive:
            # The hub checks once a second, and an engine that resumes the run has just started.
            beat = msgspec.structs.replace(beat, engine_alive=True)
        if beat.last_seq > self._session.feed.last_seq:
            self._behind.set()
        self._session.on_beat(beat, after_welcome=self.greeted)

    def _on_reply(self, reply: AnyHubMessage) -> None:
        self._silence.received()
        self._session.on_reply(reply)

    async def _greet_and_pull(self) -> None:
        try:
            await self._greet()
            await self._confirm_journal()
            while True:
                await self._pull()
                await self._behind.wait()
        except TimeoutError:
            raise HubLost(f"the hub did not answer within {REPLY_S:g} s") from None
        except DecodeError as error:
            raise HubLost(f"the hub sent a history that cannot be read: {error}") from None

    async def _ask(self, make: Callable[[int], ClientMessage]) -> AnyHubMessage:
        return await self._session.correlator.ask(make, self._connection.send, REPLY_S)

    async def _greet(self) -> None:
        session = self._session
        reply = await self._ask(
            lambda ref: Hello(
                ref=ref,
                version=PROTOCOL_VERSION,
                viewer=session.viewer,
                issuer=session.issuer,
                read_only=session.read_only,
            )
        )
        if not isinstance(reply, Welcome):
            raise ProtocolMismatch(reason_of(reply))
        if session.agent is not None and reply.version < AGENTS_SINCE:
            raise ProtocolMismatch(
                "the version of fttui that started this run has no limits for agents; stop the run "
                "and resume it with this version"
            )
        if session.one_shot and not session.feed.was_live:
            session.feed.start_after(ReadPosition(seq=reply.last_seq))
        self.greeted = True
        session.feed.set_link(Link.LIVE)
        session.on_welcome(reply)

    async def _confirm_journal(self) -> None:
        """Check that the journal still holds the newest delivered record, if there is one.

        Raises:
            JournalReplaced: it holds another record of that number, or none.
            TimeoutError: the hub did not answer.
        """
        seq, crc = self._session.feed.last_seq, self._session.feed.last_crc
        if crc is None:
            return
        chunk = await self._ask(lambda ref: FetchHistory(ref=ref, after_seq=seq - 1, max_bytes=1))
        found = list(unpack_history(chunk.blob)) if isinstance(chunk, HistoryChunk) else []
        if not found or (peek_seq(found[0]), zlib.crc32(found[0])) != (seq, crc):
            raise JournalReplaced(
                f"record {seq}, the newest one shown, is no longer in {self._run.journal}: the "
                "journal lost records or was replaced; attach again to see what it holds now"
            )

    async def _pull(self) -> None:
        """Fetch and deliver the records of the journal after the newest delivered one.

        Raises:
            HubLost: the hub refused it.
            TimeoutError: the hub did not answer.
        """
        self._behind.clear()
        feed = self._session.feed
        while True:
            chunk = await self._ask(lambda ref: FetchHistory(ref=ref, after_seq=feed.last_seq))
            if not isinstance(chunk, HistoryChunk):
                raise HubLost(f"the hub sent no history: {reason_of(chunk)}")
            feed.history(unpack_history(chunk.blob))
            if chunk.blob:
                feed.deliver(HistoryProgressed(seq=feed.last_seq, head_seq=chunk.head_seq))
            if feed.last_seq >= chunk.head_seq or not chunk.blob:
                return
            await asyncio.sleep(0)

    async def _supervise(self) -> None:
        """Ping, send unanswered commands again, and notice silence and the end of the hub.

        Raises:
            HubLost: the session is closed, or this hub is gone or silent.
        """
        ping_at = 0.0
        while True:
            self._require_hub()
            if self.greeted:
                stale = self._silence.stale
                self._session.feed.set_link(Link.STALE if stale else Link.LIVE)
                now = self._monotonic()
                if now >= ping_at:
                    ping_at = now + PING_S
                    self.send(Ping(ref=self._session.correlator.next_ref()))
                self._session.send_commands(unanswered_s=PING_S)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._closed.wait(), TICK_S)

    def _require_hub(self) -> None:
        """Check that the stream can continue.

        Raises:
            HubLost: the session is closed, or this hub is gone or silent.
        """
        endpoint = self._connection.endpoint
        if self._closed.is_set():
            raise HubLost("closed")
        if not endpoint.alive or read_endpoint(self._run) != endpoint:
            raise HubLost("the hub process has ended")
        if self._silence.lost:
            raise HubLost(f"received nothing from the hub for {LOST_S:g} s")
