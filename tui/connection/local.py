"""The session of a live run on this machine, over the run's hub.

The journal is authoritative: records that the subscription to the hub loses are pulled from the
journal. A session survives every restart of the hub, no matter who restarts it, by continuing after
the newest record it delivered. Commands without an answer are sent again under the same id, which
the hub decides only once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

from fttui.engine.errors import FttuiError, NoSuchRun, NotOwner, ProtocolMismatch
from fttui.engine.protocol.requests import ClientMessage
from fttui.engine.protocol.settings import AgentMode
from fttui.engine.run.journal import FrameReader
from fttui.engine.run.processes.identity import boot_id
from fttui.engine.run.processes.marks import Endpoint, read_engine
from fttui.engine.run.run_dir import RunDirectory

from ..view_model.connection_port import CommandAnswered, Link
from .history_reader import read_history
from .hub_connection import HubConnection, reach_hub
from .hub_stream import REPLY_S, TICK_S, HubLost, HubStream
from .offline import decided_on_disk, read_rest
from .session.session_base import LEAVE_S, SessionBase
from .session.silence import LOST_S

RETRY_S = 1.0
"""Seconds after a failed attempt to reach or start a hub."""
FOLDER_GONE_S = 4.0
"""Seconds to wait for a removed run folder, which a live engine makes again within two."""
_READ_BYTES = 512 * 1024


class LocalSession(SessionBase):
    """A viewer's session of a live run on this machine."""

    def __init__(
        self,
        run: RunDirectory,
        *,
        read_only: bool = False,
        one_shot: bool = False,
        agent: AgentMode | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Make a session of a run; for the arguments see `SessionBase`."""
        super().__init__(
            HubTransport(run),
            run_id=run.id,
            read_only=read_only,
            one_shot=one_shot,
            agent=agent,
            clock=clock,
        )


class HubTransport:
    """Connections to the hub of a run, one hub process after another, until the run has ended."""

    peer = "the hub"
    reply_timeout_s = REPLY_S
    clock_offset_s = 0.0
    boot_offset_s = 0.0

    def __init__(self, run: RunDirectory, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Make a transport for a run; `monotonic` returns monotonic seconds."""
        self._run = run
        self.boot = boot_id()
        self._monotonic = monotonic
        self._starting_until = monotonic() + LOST_S
        """Monotonic time until which an unreachable first hub counts as starting, not as lost."""
        self._stream: HubStream | None = None
        self._closed = asyncio.Event()
        self._ended = False
        """Whether the run has ended and its journal was read to the end."""
        self._refusal = ""
        """Why this session uses no hub and is read-only; empty while it uses one."""

    @property
    def ready(self) -> bool:
        """Whether a hub has greeted this viewer, so that requests can be sent."""
        return self._stream is not None and self._stream.greeted

    def send(self, message: ClientMessage) -> None:
        """Send without waiting; the message is lost if there is no hub to take it now."""
        if self._stream is not None:
            self._stream.send(message)

    def final_answer(self, command_id: str) -> CommandAnswered | None:
        """Return the answer to a command that no hub will decide on; None if a hub will.

        No hub decides after the end of the run, or if the run's hub cannot be used.
        """
        if self._refusal:
            return CommandAnswered(id=command_id, accepted=False, reason=self._refusal)
        return decided_on_disk(self._run, command_id) if self._ended else None

    async def run(self, session: SessionBase) -> None:
        """Receive from one hub after another until the session is closed or the run has ended.

        Raises:
            NoSuchRun: the run folder was moved or removed.
            ProtocolMismatch: the hub speaks another major version and the session is for a single
                command; other sessions continue without the hub, read-only.
            NotOwner: hub or engine belong to another user; also only for a single command.
            JournalReplaced: the run's journal is not the one whose records were delivered.
        """
        if not session.one_shot:
            session.feed.start_after(await read_history(self._run, session.feed.deliver))
        while not self._closed.is_set():
            await self._require_folder(session)
            try:
                endpoint = await reach_hub(self._run)
            except NotOwner as refusal:
                await self._without_hub(session, refusal)
                return
            except (FttuiError, OSError) as error:
                self._set_lost(session, str(error))
                await asyncio.sleep(RETRY_S)
                continue
            if endpoint is None:
                await self._read_to_the_end(session)
                return
            try:
                await self._follow_hub(session, endpoint)
            except ProtocolMismatch as mismatch:
                await self._without_hub(session, mismatch)
                return

    async def _without_hub(self, session: SessionBase, reason: FttuiError) -> None:
        """Read the journal of a run whose hub cannot be used; raise if a command was to be sent."""
        if session.one_shot:
            raise reason
        await self._follow_journal(session, f"{reason}; until then this viewer is read-only")

    async def _require_folder(self, session: SessionBase) -> None:
        """Wait a few seconds for a missing run folder, which a live engine makes again.

        Raises:
            NoSuchRun: the folder is still missing: it was moved, or removed without an engine.
        """
        deadline = self._monotonic() + FOLDER_GONE_S
        while not self._run.path.exists() and self._monotonic() < deadline:
            self._set_lost(session, f"the run folder {self._run.path} is missing")
            await asyncio.sleep(TICK_S)
        if not self._run.path.exists():
            path = self._run.path.absolute()
            raise NoSuchRun(
                f"the run folder {path} was moved or removed. A running engine continues to train "
                f"but cannot save anything until the folder is back: mv NEW_PLACE {path}"
            )

    async def _follow_hub(self, session: SessionBase, endpoint: Endpoint) -> None:
        stream = HubStream(self._run, HubConnection(endpoint), session, self._closed)
        self._stream = stream
        try:
            await stream.run()
        except HubLost as lost:
            if not self._closed.is_set():
                self._set_lost(session, str(lost))
        finally:
            self._stream = None

    async def _follow_journal(self, session: SessionBase, reason: str) -> None:
        """Deliver the journal of a live run without its hub, and refuse commands."""
        session.read_only, self._refusal = True, reason
        session.answer_commands(self.final_answer)
        reader = FrameReader(self._run.journal)
        while not self._closed.is_set():
            engine = read_engine(self._run)
            if engine is None or not engine.alive:
                await self._read_to_the_end(session)
                return
            while payloads := reader.read_payloads(_READ_BYTES):
                session.feed.history(payloads)
                await asyncio.sleep(0)
            session.feed.set_link(Link.LIVE, reason)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._closed.wait(), TICK_S)

    async def _read_to_the_end(self, session: SessionBase) -> None:
        """Deliver the rest of an ended run's journal, and answer commands from the run folder."""
        for delivery in read_rest(self._run, session.feed.merger):
            session.feed.deliver(delivery)
            await asyncio.sleep(0)
        session.answer_commands(lambda id_: decided_on_disk(self._run, id_))
        self._ended = True
        session.feed.set_link(Link.ENDED, "the run has ended")

    def _set_lost(self, session: SessionBase, reason: str) -> None:
        """Report the hub as lost, or as connecting while a first one may still be starting."""
        starting = not session.feed.was_live and self._monotonic() < self._starting_until
        link = Link.CONNECTING if starting else Link.LOST
        if link is not session.feed.link:
            session.feed.set_link(link, reason)

    async def close(self) -> None:
        """Make `run()` end, and wait up to `LEAVE_S` for its tasks to close their sockets."""
        self._closed.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_S):
                while self._stream is not None:
                    await asyncio.sleep(0)
