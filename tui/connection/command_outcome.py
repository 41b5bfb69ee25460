"""Send one command to a run and wait for its outcome, as scripts and `fttui ctl` do."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import Any

from fttui.engine.errors import FttuiError
from fttui.engine.protocol.chat.events import ChatAnswered, ChatAsked
from fttui.engine.protocol.commands import AnyCommand, Chat, CommandSpec, Confirm, describe_command
from fttui.engine.protocol.events import (
    CommandApplied,
    CommandFailed,
    Record,
    RunEnded,
    StateChanged,
)

from ..view_model.chat.exchange import BASE
from ..view_model.command_effect import holds
from ..view_model.connection_port import (
    BeatArrived,
    CommandAnswered,
    Delivery,
    Link,
    LinkChanged,
    RecordsArrived,
    Session,
)
from ..view_model.interventions import overtaken_by

_DEAD_BEATS = 2
"""Heartbeats without an engine after which no further record, and so no outcome, will arrive."""


@dataclass(frozen=True)
class CommandOutcome:
    """The outcome of a command."""

    id: str
    command: str
    status: str
    """One of: applied, failed, rejected, unanswered (by the hub), pending (no outcome yet)."""
    step: int | None = None
    """The number of finished steps when the outcome was recorded; None without a record."""
    timeline: int | None = None
    old: str = ""
    """The changed value before the command."""
    new: str = ""
    reason: str = ""
    """Why the command had no effect, or why an applied stop was not recorded."""
    seconds: float = 0.0
    """Seconds from the hub's acceptance to the effect."""
    answers: dict[str, str] = field(default_factory=dict)
    """The answers to the prompt of a chat, by who has given them."""


def send_command(
    session: Session, command: AnyCommand, *, reason: str, timeout_s: float, take: bool = False
) -> CommandOutcome:
    """Submit a command to a live run, close the session, and return the outcome of the command.

    Args:
        session: a session of the run, whose engine must be running; history is not needed.
        command: the command to send.
        reason: the reason to record in the journal.
        timeout_s: seconds to wait for the outcome.
        take: take control with the command, even if another viewer has it.

    Raises:
        FttuiError: the session ended before the command could be sent, for instance because the
            run has ended or belongs to another user. A hub that does not answer is the outcome
            `unanswered`.
    """
    return asyncio.run(_CommandWait(session, command, reason, take).run(timeout_s))


class _CommandWait:
    """Sends one command through a session and waits for its outcome."""

    def __init__(self, session: Session, command: AnyCommand, reason: str, take: bool) -> None:
        self._session = session
        self._command = command
        self._reason = reason
        self._take = take
        self._id = ""
        self._accepted = False
        self._unjournaled = ""
        """Why the hub obeys the command without recording it, so that no event reports it."""
        self._applying: CommandOutcome | None = None
        """A pause that was applied during a step, and takes effect at the end of that step."""
        self._applying_since = 0.0
        self._detail = ""
        self._dead_beats = 0
        self._answers: dict[str, str] = {}
        self._of = ""
        """Which checkpoint answers, as it follows the name of an answerer; empty for none."""
        """The answers to the newest prompt of a chat."""
        self._held = False
        """Training is paused or halted already, so no further event says that it holds."""

    async def run(self, timeout_s: float) -> CommandOutcome:
        self._outcome: asyncio.Future[CommandOutcome] = asyncio.get_running_loop().create_future()
        self._live = asyncio.Event()
        listening = asyncio.create_task(self._session.listen(self._deliver))
        try:
            async with asyncio.timeout(timeout_s):
                await self._submit(listening)
                either: list[asyncio.Future[Any]] = [self._outcome, listening]
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            pass
        finally:
            listening.cancel()
            await asyncio.wait([listening])
            await self._session.close()
        return self._outcome.result() if self._outcome.done() else self._without_outcome(timeout_s)

    async def _submit(self, listening: asyncio.Task[None]) -> None:
        live = asyncio.create_task(self._live.wait())
        await asyncio.wait([live, listening], return_when=asyncio.FIRST_COMPLETED)
        live.cancel()
        if listening.done():
            listening.result()
            raise FttuiError("the run ended before the command could be sent")
        self._id = self._session.submit(self._command, reason=self._reason, take=self._take)

    def _deliver(self, delivery: Delivery) -> None:
        match delivery:
            case LinkChanged(link=Link.LIVE):
                self._live.set()
            case LinkChanged(detail=detail):
                self._detail = detail
            case CommandAnswered(id=id_, accepted=accepted, reason=reason) if id_ == self._id:
                self._accepted, self._unjournaled = accepted, reason if accepted else ""
                if not accepted:
                    self._finish(self._result("rejected", reason=reason))
            case BeatArrived(beat=beat):
                self._held = beat.state.held
                self._on_beat(beat.engine_alive)
            case RecordsArrived(records=records):
                for record in records:
                    self._on_record(record)

    def _on_record(self, record: Record) -> None:
        match record.event:
            case ChatAsked(checkpoint=name):
                self._answers, self._of = {}, f" of {name}" if name else ""
            case ChatAnswered(answerer=answerer, text=text):
                of = "" if answerer == BASE else self._of
                self._answers[f"{answerer}{of}"] = text
            case CommandApplied(id=id_) as event if id_ == self._id:
                self._on_applied(event, record)
            case StateChanged(state=state) if state.held and self._applying:
                waited = self._applying.seconds + max(0.0, record.time - self._applying_since)
                self._finish(replace(self._applying, step=record.step, seconds=waited))
            case CommandApplied(command=other, spec=CommandSpec(resumes=True)) if self._applying:
                reason = overtaken_by(other)
                self._finish(self._result("failed", record=record, reason=reason))
            case CommandFailed(id=id_, reason=reason) if id_ == self._id:
                self._finish(self._result("failed", record=record, reason=reason))
            case RunEnded() if self._unjournaled:
                self._finish(self._result("applied", record=record, reason=self._unjournaled))
            case RunEnded(state=state) if self._accepted:
                reason = f"the run ended ({state.value}) before the command took effect"
                self._finish(self._result("failed", record=record, reason=reason))

    def _on_applied(self, event: CommandApplied, record: Record) -> None:
        """Take the effect as the outcome; that of a pause only once training is held."""
        if isinstance(self._command, Confirm) and event.typed is not None:
            self._command = event.typed
        applied = self._result(
            "applied", record=record, old=event.old, new=event.new, seconds=event.seconds
        )
        # A journal of an older version has the settings before a command only as text.
        paused = event.previous.paused if event.previous else event.old.startswith("paused")
        if holds(self._command) and not paused and not self._held:
            self._applying, self._applying_since = applied, record.time
        else:
            self._finish(applied)

    def _on_beat(self, alive: bool) -> None:
        self._dead_beats = 0 if alive else self._dead_beats + 1
        if self._unjournaled and self._dead_beats >= _DEAD_BEATS:
            self._finish(self._result("applied", reason=self._unjournaled))
        if self._accepted and self._dead_beats >= _DEAD_BEATS:
            reason = (
                "the training process ended before it reported an outcome; whether the command "
                "took effect is not known"
            )
            self._finish(self._result("failed", reason=reason))

    def _finish(self, outcome: CommandOutcome) -> None:
        if not self._outcome.done():
            self._outcome.set_result(outcome)

    def _without_outcome(self, timeout_s: float) -> CommandOutcome:
        if not self._id or not self._accepted:
            why = self._detail or f"the hub did not answer within {timeout_s:.3g} s"
            return self._result("unanswered", reason=why)
        reason = f"accepted, but without effect after {timeout_s:.3g} s; it may still take effect"
        return self._result("pending", reason=reason)

    def _result(
        self,
        status: str,
        *,
        record: Record | None = None,
        old: str = "",
        new: str = "",
        reason: str = "",
        seconds: float = 0.0,
    ) -> CommandOutcome:
        asked = isinstance(self._command, Chat) and status == "applied"
        return CommandOutcome(
            id=self._id,
            command=describe_command(self._command),
            status=status,
            step=record.step if record else None,
            timeline=record.timeline if record else None,
            old=old,
            new=new,
            reason=reason,
            seconds=seconds,
            answers=dict(self._answers) if asked else {},
        )
