"""The part of a session of a live run that does not depend on the transport."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from fttui.engine.errors import EngineGone, FttuiError
from fttui.engine.protocol.commands import AnyCommand
from fttui.engine.protocol.requests import (
    Accepted,
    AnyHubMessage,
    Beat,
    ClientMessage,
    ControlGiven,
    FetchReport,
    Refused,
    Rejected,
    ReleaseControl,
    ReportText,
    SubmitCommand,
    TakeControl,
    Welcome,
)
from fttui.engine.protocol.settings import AgentMode
from fttui.engine.run.processes.identity import boot_seconds

from ...view_model.connection_port import BeatArrived, CommandAnswered, Deliver
from ..viewer_identity import issuer, new_command_id, new_viewer
from .correlator import RequestCorrelator
from .pending_commands import PendingCommands
from .session_feed import SessionFeed

LEAVE_S = 1.0
"""Seconds that closing a session waits for the hub, and again for the transport."""
EXPIRES_S = 30.0
"""Seconds after which a submitted command that has not reached the hub is refused, because the
connection was down and the situation it was meant for is over. An accepted command does not expire,
however long a step or an evaluation takes."""


READ_ONLY = "this viewer is read-only"
"""Why a read-only session sends no command; the hub would refuse it, too."""


class Transport(Protocol):
    """The connections from a session to its run, one after another."""

    peer: str
    """The other end as named in error texts, such as `the hub`."""
    reply_timeout_s: float

    @property
    def ready(self) -> bool:
        """Whether messages can be sent now."""

    @property
    def clock_offset_s(self) -> float:
        """The wall clock of the run's machine minus that of this machine, in seconds."""

    @property
    def boot(self) -> str:
        """The boot id of the run's machine; empty if it is not known."""

    @property
    def boot_offset_s(self) -> float:
        """The uptime of the run's machine minus that of this machine, in seconds."""

    async def run(self, session: SessionBase) -> None:
        """Receive for the session, reconnecting as needed, until it is closed or the run ended."""

    def send(self, message: ClientMessage) -> None:
        """Send a message without waiting; the message may be lost with the connection."""

    def final_answer(self, command_id: str) -> CommandAnswered | None:
        """Return the answer to a new command if no hub will ever decide on it, else None."""

    async def close(self) -> None:
        """End the connection, which makes `run()` return."""


class SessionBase:
    """A viewer's session of a live run: delivers what arrives, sends commands and requests.

    A transport calls the methods below `# called by the transport`; the app calls the others.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        run_id: str,
        read_only: bool = False,
        one_shot: bool = False,
        agent: AgentMode | None = None,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Make a session over a transport.

        Args:
            transport: carries messages; nothing is connected before `listen`.
            run_id: the run's id, empty while it is not known.
            read_only: the hub refuses commands and control to this viewer.
            one_shot: for a script that sends one command: records before the first connection are
                left out, and its commands do not make this viewer the controller.
            agent: what the agent behind this viewer may do; None for a person or a script.
            clock: returns Unix seconds.
            monotonic: returns monotonic seconds.
        """
        self.run_id = run_id
        self.viewer = new_viewer()
        self.issuer = issuer()
        self.read_only = read_only
        self.why_read_only = READ_ONLY
        """Why commands of a read-only session are refused; a remote host may give its reason."""
        self.one_shot = one_shot
        self.agent = agent
        self.feed = SessionFeed()
        self.correlator = RequestCorrelator()
        self._transport = transport
        self._clock = clock
        self._monotonic = monotonic
        self._pending = PendingCommands()
        self._holds_control = False

    async def listen(self, deliver: Deliver) -> None:
        """Deliver everything from the first record on, through any number of reconnections.

        A session for one command begins with the records after the first connection instead.

        Raises:
            FttuiError: the run cannot be followed any further, and trying again would not help.
        """
        self.feed.start(deliver)
        await self._transport.run(self)

    def submit(
        self,
        command: AnyCommand,
        *,
        reason: str = "",
        if_generation: int | None = None,
        take: bool = False,
    ) -> str:
        """Send a command and return its id at once; the answer comes as `CommandAnswered`.

        Args:
            command: the command to send.
            reason: the reason to record in the journal.
            if_generation: the settings generation that the command was made for; at any other,
                the hub rejects it; None for a command that does not depend on it.
            take: take control with the command, in the same request.
        """
        message = SubmitCommand(
            ref=0,
            id=new_command_id(),
            command=command,
            viewer=self.viewer,
            issuer=self.issuer,
            reason=reason,
            expires_at=self._clock() + self._transport.clock_offset_s + EXPIRES_S,
            expires_boot_s=boot_seconds() + self._transport.boot_offset_s + EXPIRES_S,
            boot=self._transport.boot,
            if_generation=if_generation,
            one_shot=self.one_shot,
            take=take,
            agent=self.agent,
        )
        self._pending.add(message)
        answer = self._transport.final_answer(message.id)
        if self.read_only and answer is None:
            answer = CommandAnswered(id=message.id, accepted=False, reason=self.why_read_only)
        if answer is not None:
            # Later, so that the caller knows the id when the answer is delivered.
            asyncio.get_running_loop().call_soon(self._deliver_answer, answer)
        elif self._transport.ready:
            for unsent in self._pending.unsent(self._monotonic()):
                self._transport.send(unsent)
        return message.id

    async def take_control(self) -> str | None:
        """Become the controller; return why that was refused, or None on success."""
        if self.read_only:
            return self.why_read_only
        try:
            reply = await self.ask(self._take_control)
        except EngineGone as error:
            return str(error)
        self._holds_control = isinstance(reply, ControlGiven)
        return None if self._holds_control else reason_of(reply)

    async def release_control(self) -> None:
        """Give up control of the run, so that another viewer can take it."""
        self._holds_control = False
        with suppress(EngineGone):
            await self.ask(lambda ref: ReleaseControl(ref=ref, viewer=self.viewer))

    async def fetch_report(self, report: str) -> str:
        """Return an anomaly report as Markdown.

        Raises:
            FttuiError: there is no report of that name, or no reply arrived.
        """
        reply = await self.ask(lambda ref: FetchReport(ref=ref, report=report))
        if isinstance(reply, ReportText):
            return reply.markdown
        raise FttuiError(reason_of(reply))

    async def ask(self, make: Callable[[int], ClientMessage]) -> AnyHubMessage:
        """Send the request that `make` returns for a request number, and return its reply.

        Raises:
            EngineGone: there is no connection, or no reply arrived in time.
        """
        transport = self._transport
        if not transport.ready:
            raise EngineGone(f"no connection to {transport.peer} now; it is being restored")
        timeout_s = transport.reply_timeout_s
        try:
            return await self.correlator.ask(make, transport.send, timeout_s)
        except TimeoutError:
            raise EngineGone(
                f"{transport.peer} did not answer within {timeout_s:g} s; try again"
            ) from None

    async def close(self) -> None:
        """Release control and disconnect; the run continues."""
        if not (self.read_only or self.one_shot):
            # Also without control as far as known: heartbeats lag behind, and releasing control
            # that this viewer does not hold changes nothing.
            with suppress(TimeoutError):
                async with asyncio.timeout(LEAVE_S):
                    await self.release_control()
        await self._transport.close()

    # called by the transport

    def on_reply(self, reply: AnyHubMessage) -> None:
        """Handle a message of the hub: a greeting, or the answer to a request or command."""
        if self.correlator.match(reply):
            return
        match reply:
            case Welcome():
                self.on_welcome(reply)
            case Accepted(id=id_, unjournaled=reason):
                self._deliver_answer(CommandAnswered(id=id_, accepted=True, reason=reason))
            case Rejected(id=id_, reason=reason):
                self._deliver_answer(CommandAnswered(id=id_, accepted=False, reason=reason))

    def on_welcome(self, welcome: Welcome) -> None:
        """After a hub's greeting, send open requests and unanswered commands again.

        If this viewer had control and the hub reports no controller, it takes control first.
        Nothing is sent while the transport is not ready.
        """
        if not self._transport.ready:
            return  # the reply to a greeting that was given up
        if self._holds_control and welcome.controller is None:
            self._transport.send(self._take_control(self.correlator.next_ref(), if_free=True))
        self.correlator.repeat(self._transport.send)
        self.send_commands()

    def on_beat(self, beat: Beat, *, after_welcome: bool) -> None:
        """Deliver a heartbeat, and note whether this viewer has control.

        Args:
            beat: the heartbeat.
            after_welcome: whether the hub has greeted this viewer. Before that, a heartbeat without
                a controller is ignored: a new hub has none until a viewer asks it again.
        """
        if beat.controller_viewer is not None or after_welcome:
            self._holds_control = beat.controller_viewer == self.viewer
        self.feed.deliver(BeatArrived(beat))

    def send_commands(self, *, unanswered_s: float = 0.0) -> None:
        """Send the unanswered commands that were never sent, or last sent `unanswered_s` ago.

        Nothing is sent while the transport is not ready.
        """
        if self._transport.ready:
            for message in self._pending.due(self._monotonic(), unanswered_s):
                self._transport.send(message)

    def answer_commands(self, answer: Callable[[str], CommandAnswered | None]) -> None:
        """Answer pending commands that no hub will answer any more.

        Args:
            answer: returns the answer for a command's id; None leaves the command pending.
        """
        for id_ in self._pending.ids():
            if (found := answer(id_)) is not None:
                self._deliver_answer(found)

    def _deliver_answer(self, answer: CommandAnswered) -> None:
        if self._pending.answered(answer.id):
            self.feed.deliver(answer)

    def _take_control(self, ref: int, *, if_free: bool = False) -> TakeControl:
        return TakeControl(ref=ref, viewer=self.viewer, issuer=self.issuer, if_free=if_free)


def reason_of(reply: AnyHubMessage) -> str:
    """Return why the hub refused a request, or that its reply was of an unexpected kind."""
    return reply.reason if isinstance(reply, Refused) else f"unexpected reply of the hub: {reply}"
