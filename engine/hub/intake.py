"""What happens to a submitted command: the one place that decides, journals and remembers.

No sockets and no clock in here. An id is decided once: the answer is stored in the control journal
before it is given, and every repetition, also after a restart of the hub, gets the same one.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from ..protocol.command_args import CommandError
from ..protocol.commands import (
    AnyCommand,
    ResetLr,
    Rollback,
    ScaleLr,
    SetClip,
    SetLr,
    SetPolicy,
    describe_command,
    parse_command,
    why_illegal,
)
from ..protocol.requests import Accepted, Rejected, SubmitCommand
from ..protocol.states import RunState
from ..run.control_log import ControlEntry

_VERSIONED = (ScaleLr, SetLr, ResetLr, SetClip, SetPolicy, Rollback)
"""Commands that change the desired control state, and so its generation."""


class ControlLog(Protocol):
    """Where decisions are kept."""

    entries: list[ControlEntry]

    @property
    def last_seq(self) -> int:
        """Sequence number of the newest entry; 0 when there is none."""

    def append(self, entry: ControlEntry) -> None:
        """Store an entry durably.

        Raises:
            OSError: it is not stored.
        """


class Controller(msgspec.Struct, frozen=True, kw_only=True):
    """The viewer whose commands count."""

    viewer: str
    issuer: str


class Intake:
    """Decides about commands, at most once per id."""

    def __init__(self, log: ControlLog) -> None:
        self._log = log
        self._decided = {entry.id: entry for entry in log.entries}
        self.controller: Controller | None = None
        self.generation = log.entries[-1].generation if log.entries else 0

    def submit(self, message: SubmitCommand, *, state: RunState, now: float) -> Accepted | Rejected:
        """Decide about a command; `now` is Unix seconds."""
        known = self._decided.get(message.id)
        if known is None:
            entry = self._store(self._decide(message, state, now))
            if entry.rejected is None and not message.one_shot:
                self.take(message.viewer, message.issuer)
            return _answer(entry, message.ref)
        if known.command != message.command:
            reason = (
                f"id {message.id} was used for another command: {describe_command(known.command)}"
            )
            return Rejected(ref=message.ref, id=message.id, reason=reason)
        return _answer(known, message.ref)

    def _decide(self, message: SubmitCommand, state: RunState, now: float) -> ControlEntry:
        refusal = self._why_not(message, state, now)
        moves = refusal is None and isinstance(message.command, _VERSIONED)
        return ControlEntry(
            seq=self._log.last_seq + 1,
            time=now,
            id=message.id,
            command=message.command,
            issuer=message.issuer,
            reason=message.reason,
            expires_at=message.expires_at,
            generation=self.generation + moves,
            rejected=refusal,
        )

    def _why_not(self, message: SubmitCommand, state: RunState, now: float) -> str | None:
        holder = self.controller
        if message.expires_at is not None and now > message.expires_at:
            return f"it expired {now - message.expires_at:.1f} s before it arrived"
        if holder is not None and holder.viewer != message.viewer:
            return (
                f"{holder.issuer} has control; take it over with t in the app or fttui ctl --take"
            )
        if message.if_generation not in (None, self.generation):
            return (
                f"the settings have changed since: they are at generation {self.generation}, "
                f"the command was made for {message.if_generation}; look again and repeat it"
            )
        return _why_malformed(message.command) or why_illegal(message.command, state)

    def _store(self, entry: ControlEntry) -> ControlEntry:
        try:
            self._log.append(entry)
            self.generation = entry.generation
        except OSError as error:
            reason = entry.rejected or f"disk: the control journal cannot be written ({error})"
            entry = msgspec.structs.replace(entry, rejected=reason)
        self._decided[entry.id] = entry
        return entry

    def take(self, viewer: str, issuer: str) -> None:
        """Make a viewer the controller, whoever was it before."""
        self.controller = Controller(viewer=viewer, issuer=issuer)

    def release(self, viewer: str) -> None:
        """A viewer gives control up or is gone; nothing happens when it had none."""
        if self.controller is not None and self.controller.viewer == viewer:
            self.controller = None


def _answer(entry: ControlEntry, ref: int) -> Accepted | Rejected:
    if entry.rejected is None:
        return Accepted(ref=ref, id=entry.id)
    return Rejected(ref=ref, id=entry.id, reason=entry.rejected)


def _why_malformed(command: AnyCommand) -> str | None:
    """A script can send values that could never be typed, such as a NaN factor."""
    try:
        parse_command(describe_command(command).split())
    except CommandError as error:
        return str(error)
    return None
