"""The hub: publishes new records and heartbeats, answers requests and accepts commands."""

from __future__ import annotations

import logging
import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from ..protocol.codec import (
    BEAT_TOPIC,
    EVENT_TOPIC,
    PROTOCOL_VERSION,
    DecodeError,
    decode_client,
    encode,
)
from ..protocol.requests import (
    Accepted,
    AnyClientMessage,
    AnyHubMessage,
    ControlGiven,
    FetchConfig,
    FetchDataSample,
    FetchHistory,
    FetchReport,
    Hello,
    Ping,
    Pong,
    Refused,
    Rejected,
    ReleaseControl,
    SubmitCommand,
    TakeControl,
    Welcome,
)
from ..run.checkpoint_store import CheckpointStore, CopyList
from ..run.control_log import ControlWriter, decision_lock
from ..run.files import free_bytes
from ..run.journal import JournalLocked
from ..run.processes.heartbeat import HubStatus, build_beat
from ..run.processes.identity import boot_id, boot_seconds
from ..run.processes.marks import read_engine_status
from ..run.run_dir import RunDirectory
from .file_requests import answer_from_folder
from .intake import ClockReading, Intake
from .journal_index import JournalIndex
from .live_status import LiveStatus
from .run_settings import agent_limits
from .sockets import HubSockets
from .unknown_names import why_unknown
from .viewers import Viewer, Viewers

BEAT_S = 1.0
LOCKED_OUT_BEATS = 3
"""Heartbeats without the lock of the control journal after which a hub ends."""
FOLDER_GONE_S = 5.0
"""Seconds without a run folder after which the hub of a live engine ends."""
BUSY_POLL_S = 0.01
IDLE_POLL_S = 0.1
REQUESTS_PER_TURN = 64


_log = logging.getLogger("hub")


@dataclass
class ErrorCounts:
    """Counts of errors that did not end the hub."""

    refused: int = 0
    """Messages that were answered with a refusal."""


class Hub:
    """Serves one run until its engine has ended and no viewer has sent a message for `idle_s`."""

    def __init__(
        self,
        run: RunDirectory,
        control: ControlWriter,
        sockets: HubSockets,
        idle_s: float,
    ) -> None:
        self._run = run
        self._sockets = sockets
        self._idle_s = idle_s
        self._index = JournalIndex(run.journal)
        self._status = LiveStatus()
        self._control = control
        self._intake = Intake(control, run.resume_hint, agent_limits(run))
        self._viewers = Viewers(time.monotonic())
        self._copies = CopyList(run)
        self._next_beat = 0.0
        self._busy_until = 0.0
        self._folder_seen_at = self._mark_seen_at = time.monotonic()
        self._beats_locked_out = 0
        """Heartbeats in a row in which another hub held the lock of the control journal."""
        self._signalled: int | None = None
        """The incarnation of the engine that was stopped by a signal."""
        self.counters = ErrorCounts()
        while records := self._index.advance():
            self._observe(records)
        self._update_engine()

    def turn(self) -> None:
        """Wait briefly, then publish new records, answer requests and send a due heartbeat."""
        busy = time.monotonic() < self._busy_until
        self._sockets.wait(BUSY_POLL_S if busy else IDLE_POLL_S)
        self._publish_new()
        for _ in range(REQUESTS_PER_TURN):
            frames = self._sockets.receive()
            if frames is None:
                break
            self._busy_until = time.monotonic() + 1.0
            self._serve(frames)
        if time.monotonic() >= self._next_beat:
            self._beat()

    def done(self) -> bool:
        """Whether the hub must end: it is idle, was replaced, or its run folder is gone."""
        now = time.monotonic()
        idle = not self._status.engine.alive and now - self._viewers.last_message_at > self._idle_s
        if self._run.identity_file.exists():
            self._folder_seen_at = now
        # A live engine makes a removed folder again within a heartbeat.
        patience_s = FOLDER_GONE_S if self._status.engine.alive else 0.0
        replaced = self._beats_locked_out > LOCKED_OUT_BEATS
        return idle or replaced or now - self._folder_seen_at > patience_s

    def _publish_new(self) -> None:
        records = self._index.advance()
        if not records:
            return
        self._busy_until = time.monotonic() + 1.0
        self._observe(records)
        for payload in records:
            self._sockets.publish(EVENT_TOPIC, payload)

    def _observe(self, records: list[bytes]) -> None:
        generation, incarnation = self._intake.generation, self._status.incarnation
        for payload in records:
            self._status.add(payload)
            self._intake.observe(payload)
        if self._status.incarnation != incarnation:
            self._intake.limit_agents(agent_limits(self._run))
        if self._intake.generation != generation:
            # Until viewers know it, each relative change of theirs is refused.
            self._next_beat = 0.0

    def _update_engine(self) -> None:
        """Note whether the engine lives; one whose mark is removed counts as alive for a while.

        A live engine writes its mark and its folder again, and needs this hub with its decisions.
        """
        found, now = read_engine_status(self._run), time.monotonic()
        if found.pid is not None:
            self._mark_seen_at = now
        elif self._status.engine.alive and now - self._mark_seen_at < FOLDER_GONE_S:
            return
        self._status.update_engine(found)

    def _keep_control_journal(self) -> None:
        try:
            written = self._control.keep_in_place()
        except JournalLocked:
            # A hub that starts takes the lock until it finds this one; one that serves keeps it.
            self._beats_locked_out += 1
            return
        except OSError as error:
            _log.error("the control journal cannot be kept in its place: %s", error)
            return
        self._beats_locked_out = 0
        if written:
            _log.error("control.log was removed, and is written again with all its entries")

    def _beat(self) -> None:
        now = time.monotonic()
        self._next_beat = now + BEAT_S
        self._keep_control_journal()
        self._update_engine()
        for viewer in self._viewers.drop_silent(now):
            self._intake.release(viewer)
        controller = self._intake.controller
        hub = HubStatus(
            controller=controller.issuer if controller else None,
            controller_viewer=controller.viewer if controller else None,
            viewers=len(self._viewers),
            generation=self._intake.generation,
        )
        status, last_seq = self._status, self._index.last_seq
        beat = build_beat(
            self._run,
            status.state,
            status.engine,
            last_seq,
            now=time.time(),
            hub=hub,
            copies=self._copies,
        )
        self._sockets.publish(BEAT_TOPIC, encode(beat))

    def _serve(self, frames: list[bytes]) -> None:
        connection = frames[0]
        try:
            if len(frames) != 2:
                raise DecodeError(f"expected one frame, got {len(frames) - 1}")
            message = decode_client(frames[1])
        except DecodeError as error:
            reply: AnyHubMessage = Refused(ref=0, reason=f"invalid message: {error}")
        else:
            reply = self._answer(connection, message)
        self.counters.refused += isinstance(reply, Refused)
        self._sockets.reply(connection, encode(reply))

    def _answer(self, connection: bytes, message: AnyClientMessage) -> AnyHubMessage:
        self._viewers.refresh(connection, time.monotonic())
        if (refusal := self._why_watching(connection, message)) is not None:
            return refusal
        reply: AnyHubMessage
        match message:
            case Hello():
                reply = self._welcome(connection, message)
            case FetchHistory(ref=ref, after_seq=after_seq, max_bytes=max_bytes):
                reply = self._index.chunk(ref, after_seq, max_bytes)
            case FetchReport() | FetchConfig() | FetchDataSample():
                reply = answer_from_folder(self._run, message)
            case SubmitCommand():
                reply = self._submit(message)
            case TakeControl() | ReleaseControl():
                reply = self._hand_over(message)
            case Ping(ref=ref):
                reply = Pong(ref=ref)
        return reply

    def _why_watching(self, connection: bytes, message: AnyClientMessage) -> AnyHubMessage | None:
        """Return the refusal of a read-only viewer's command; None for any other message."""
        if not isinstance(message, SubmitCommand | TakeControl | ReleaseControl):
            return None
        if not self._viewers.only_watches(connection, message.viewer):
            return None
        reason = "this viewer is read-only"
        if isinstance(message, SubmitCommand):
            return Rejected(ref=message.ref, id=message.id, reason=reason)
        return Refused(ref=message.ref, reason=reason)

    def _hand_over(self, message: TakeControl | ReleaseControl) -> ControlGiven:
        if isinstance(message, TakeControl):
            if not (message.if_free and self._intake.controller):
                self._intake.take(message.viewer, message.issuer)
        else:
            self._intake.release(message.viewer)
        self._next_beat = 0.0
        return ControlGiven(ref=message.ref, controller=self._controller())

    def _controller(self) -> str | None:
        holder = self._intake.controller
        return holder.issuer if holder else None

    def _submit(self, message: SubmitCommand) -> AnyHubMessage:
        try:
            with self._run.open(), decision_lock(self._run):
                return self._decide(message)
        except OSError as error:
            reason = f"disk: the run folder cannot be used ({error})"
            return Rejected(ref=message.ref, id=message.id, reason=reason)

    def _decide(self, message: SubmitCommand) -> AnyHubMessage:
        self._publish_new()
        # Commands for an engine that started since the last heartbeat must be accepted.
        self._update_engine()
        before = self._intake.controller
        now = ClockReading(time.time(), boot_seconds(), boot_id())
        store, anomalies = CheckpointStore(self._run), self._status.anomalies
        reply = self._intake.submit(
            message,
            state=self._status.state,
            now=now,
            refused=self._status.refused,
            unknown=partial(why_unknown, store=store, anomalies=anomalies),
            disk_free_bytes=free_bytes(self._run.path),
        )
        if self._intake.controller != before:
            self._next_beat = 0.0
        if isinstance(reply, Accepted) and reply.unjournaled:
            self._stop_by_signal()
        return reply

    def _stop_by_signal(self) -> None:
        """Send SIGINT to an engine on this machine, which then stops.

        Each engine gets the signal once: a second one would end it without a checkpoint.
        """
        engine = self._status.engine
        if engine.pid is None or engine.host or self._signalled == engine.incarnation:
            return
        self._signalled = engine.incarnation
        with suppress(ProcessLookupError, PermissionError):
            os.kill(engine.pid, signal.SIGINT)

    def _welcome(self, connection: bytes, hello: Hello) -> AnyHubMessage:
        if hello.version[0] != PROTOCOL_VERSION[0]:
            theirs, ours = (".".join(map(str, v)) for v in (hello.version, PROTOCOL_VERSION))
            reason = f"the viewer speaks protocol {theirs}, the hub of this run {ours}"
            next_step = "use the fttui version that started the run"
            return Refused(ref=hello.ref, reason=f"{reason}; {next_step}")
        now = time.monotonic()
        self._viewers.welcome(
            connection,
            Viewer(
                id=hello.viewer, issuer=hello.issuer, read_only=hello.read_only, last_message_at=now
            ),
        )
        self._next_beat = 0.0
        return Welcome(
            ref=hello.ref,
            version=PROTOCOL_VERSION,
            run=self._run.id,
            incarnation=self._status.incarnation,
            last_seq=self._index.last_seq,
            controller=self._controller(),
        )
