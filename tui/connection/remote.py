"""The session of a run on a remote host, over ssh.

After a lost connection the viewer names the newest record it has, and the stream continues after
that one. Commands without an answer are sent again under the same id, which the hub decides only
once.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from contextlib import suppress

from fttui.engine.errors import FttuiError
from fttui.engine.protocol.codec import PROTOCOL_VERSION
from fttui.engine.protocol.data.sample import SampleRecord
from fttui.engine.protocol.requests import (
    ClientMessage,
    ConfigTexts,
    DataSampleRecords,
    FetchConfig,
    FetchDataSample,
)
from fttui.engine.protocol.settings import LearningRate
from fttui.engine.protocol.ssh_protocol import Open

from ..view_model.connection_port import CommandAnswered, Link
from .history_reader import ReadPosition
from .session.session_base import LEAVE_S, READ_ONLY, SessionBase, reason_of
from .ssh.backoff import Backoff
from .ssh.bridge_stream import BridgeStream, RemoteRun
from .ssh.remote_host import RemoteHost, Unreachable
from .ssh.ssh_connection import HANDSHAKE_S, SshConnection

REPLY_S = 8.0


class RemoteSession(SessionBase):
    """A viewer's session of a run on a remote host."""

    def __init__(
        self, host: RemoteHost, *, read_only: bool = False, one_shot: bool = False
    ) -> None:
        """Make a session of a run that `open` names; for the arguments see `SessionBase`."""
        self._ssh = SshTransport(host)
        super().__init__(self._ssh, run_id="", read_only=read_only, one_shot=one_shot)

    async def open(self, connection: SshConnection, run: str | None) -> None:
        """Open a run over a first connection, made while ssh may still ask the user questions.

        Raises:
            FttuiError: the run cannot be served.
        """
        await self._ssh.open(self, connection, run)

    @property
    def engine_alive(self) -> bool:
        """Whether an engine worked on the run when the newest connection was opened."""
        return self._ssh.remote_run.engine_alive

    @property
    def host(self) -> str:
        """The remote host, as the user named it."""
        return self._ssh.peer

    @property
    def remote_host(self) -> RemoteHost:
        """The remote host, and how fttui is called there."""
        return self._ssh.remote

    @property
    def learning_rate(self) -> LearningRate:
        """The learning rate in force when the newest connection was opened."""
        return self._ssh.remote_run.learning_rate

    async def fetch_configs(self) -> ConfigTexts:
        """Return the run's configuration as stored in its folder on the remote host.

        Raises:
            FttuiError: no reply arrived, or the remote fttui is too old to send it.
        """
        reply = await self.ask(lambda ref: FetchConfig(ref=ref))
        if isinstance(reply, ConfigTexts):
            return reply
        raise FttuiError(reason_of(reply))

    async def fetch_data_sample(self) -> list[SampleRecord]:
        """Return the first training records as stored in the run folder on the remote host.

        Raises:
            FttuiError: no reply arrived, or the remote fttui is too old to send them.
        """
        reply = await self.ask(lambda ref: FetchDataSample(ref=ref))
        if isinstance(reply, DataSampleRecords):
            return reply.records
        raise FttuiError(reason_of(reply))


class SshTransport:
    """Connections to a run on a remote host, one ssh process after another."""

    reply_timeout_s = REPLY_S

    def __init__(
        self,
        host: RemoteHost,
        *,
        connect: Callable[..., SshConnection] = SshConnection,
        chance: Callable[[], float] = random.random,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Make a transport to a host.

        Args:
            host: the host and how fttui is called there.
            connect: starts ssh; takes the arguments of `SshConnection`.
            chance: returns random numbers in [0, 1), for the time between two attempts.
            clock: returns Unix seconds.
            monotonic: returns monotonic seconds.
        """
        self.peer = host.host
        self.remote_run = RemoteRun(name=None)
        self.remote = host
        self._connect = connect
        self._clock = clock
        self._monotonic = monotonic
        self._backoff = Backoff(chance)
        self._opened: BridgeStream | None = None
        """The stream of the first connection until `run()` starts it; None from then on."""
        self._stream: BridgeStream | None = None
        """The stream that `run()` started last."""
        self._closed = asyncio.Event()

    @property
    def ready(self) -> bool:
        """Whether a bridge is connected; the bridge keeps requests while the run has no hub."""
        return self._stream is not None and self._stream.receiving

    @property
    def clock_offset_s(self) -> float:
        """The clock of the remote host minus that of this machine, in seconds."""
        return self.remote_run.clock_offset_s

    @property
    def boot(self) -> str:
        """The boot id of the remote host; empty if it is not known."""
        return self.remote_run.boot

    @property
    def boot_offset_s(self) -> float:
        """The uptime of the remote host minus that of this machine, in seconds."""
        return self.remote_run.boot_offset_s

    def send(self, message: ClientMessage) -> None:
        """Send without waiting; the message is lost if there is no connection now."""
        if self._stream is not None and self._stream.receiving:
            self._stream.send(message)

    def final_answer(self, command_id: str) -> CommandAnswered | None:
        """Return None: the bridge answers every command, also after the end of the run."""
        return None

    async def open(self, session: SessionBase, connection: SshConnection, run: str | None) -> None:
        """Open a run over a connection from which `run()` will receive first.

        Raises:
            FttuiError: the run cannot be served.
        """
        self.remote_run.name = run
        self._opened = await self._open(session, connection)

    async def _open(self, session: SessionBase, connection: SshConnection) -> BridgeStream:
        run = self.remote_run
        from_now = session.one_shot and run.received is None
        opened = await connection.open(
            Open(
                version=PROTOCOL_VERSION,
                viewer=session.viewer,
                issuer=session.issuer,
                run=run.name,
                read_only=session.read_only,
                one_shot=from_now,
                seen=run.received,
            )
        )
        session.run_id = opened.run
        session.read_only = bool(opened.why_read_only)
        session.why_read_only = opened.why_read_only or READ_ONLY
        run.opened(opened, self._clock())
        if from_now:
            session.feed.start_after(ReadPosition(seq=opened.from_seq))
        return BridgeStream(
            connection, run, session, self._closed, clock=self._clock, monotonic=self._monotonic
        )

    async def run(self, session: SessionBase) -> None:
        """Receive over one connection after another until the session is closed.

        Raises:
            FttuiError: the run cannot be served, or ssh refused the login; trying again by itself
                would not help.
        """
        while not self._closed.is_set():
            try:
                self._stream = await self._next_stream(session)
                self._backoff.connected(self._monotonic())
                await self._stream.run()
            except Unreachable as lost:
                if not self._closed.is_set():
                    wait_s = self._backoff.failed(self._monotonic())
                    session.feed.set_link(Link.LOST, f"{lost}; trying again")
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self._closed.wait(), wait_s)

    async def _next_stream(self, session: SessionBase) -> BridgeStream:
        """Return the stream that `open` made, or a new one of a connection made without prompts.

        Raises:
            Unreachable: trying again may help.
            FttuiError: trying again would not help.
        """
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.connection.attach()
            return opened
        shared = self._backoff.failures < 2
        connection = self._connect(self.remote, may_prompt=False, shared=shared)
        connection.attach()
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                return await self._open(session, connection)
        except TimeoutError:
            await connection.close()
            raise Unreachable(f"{self.peer} did not answer within {HANDSHAKE_S:g} s") from None
        except BaseException:
            await connection.close()
            raise

    async def close(self) -> None:
        """Make `run()` end, and wait up to `LEAVE_S` for it to close its connection."""
        self._closed.set()
        if self._opened is not None:
            await self._opened.connection.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_S):
                while self.ready:
                    await asyncio.sleep(0.01)
