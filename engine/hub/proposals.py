"""The proposals of a run: which are open, and the command that a confirmation stands for.

They are read from the control journal, so a new hub knows them, too. The module does no I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from ..protocol.commands import Confirm, Decline, Propose, TrainingCommand, proposal_name
from ..protocol.requests import SubmitCommand
from ..run.control_log import ControlEntry


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """A proposed command, which a person can confirm or decline once, until it expires."""

    command: TrainingCommand
    entry: ControlEntry
    """The decision that accepted the proposal."""


class Proposals:
    """All proposals of a run by name, and those that are closed."""

    def __init__(self, entries: Iterable[ControlEntry]) -> None:
        self._made: dict[str, Proposal] = {}
        self._closed: dict[str, str] = {}
        """Name of a closed proposal → how it was closed and by whom."""
        for entry in entries:
            self.note(entry)

    def note(self, entry: ControlEntry) -> None:
        """Note the newest decision: a proposal, its end, or something else."""
        if entry.rejected is not None or not entry.proposal:
            return
        if isinstance(entry.command, Propose):
            self._made[entry.proposal] = Proposal(command=entry.command.command, entry=entry)
        else:
            how = "declined" if isinstance(entry.command, Decline) else "confirmed"
            self._closed[entry.proposal] = f"{how} by {entry.issuer}"

    def name_of(self, message: SubmitCommand) -> str:
        """Return the proposal that a command makes, confirms or declines; empty if it does not."""
        match message.command:
            case Propose():
                return proposal_name(message.id)
            case Confirm(proposal=name) | Decline(proposal=name):
                return name
            case _:
                return ""

    def confirmed(self, message: SubmitCommand) -> SubmitCommand:
        """Return the command that a confirmation stands for; any other command unchanged.

        It is the command of whoever confirms it, and its reason names who proposed it and why.
        """
        found = self._made.get(self.name_of(message))
        if found is None or not isinstance(message.command, Confirm):
            return message
        by = f"proposed by {found.entry.issuer}"
        reasons = [message.reason, f"{by}: {found.entry.reason}" if found.entry.reason else by]
        return msgspec.structs.replace(
            message, command=found.command, reason="; ".join(filter(None, reasons))
        )

    def why_not(
        self, message: SubmitCommand, expired_s: Callable[[ControlEntry], float | None]
    ) -> str | None:
        """Return why a proposal cannot be made, confirmed or declined; None if it can.

        Args:
            message: the command as it was submitted.
            expired_s: returns the seconds since a proposal expired, negative before.
        """
        name = self.name_of(message)
        found = self._made.get(name)
        if isinstance(message.command, Propose):
            return None if found is None else "its name is taken; propose it again"
        if not name:
            return None
        if found is None:
            return f"there is no proposal {name}; expected a name that `propose` has printed"
        if how := self._closed.get(name):
            return f"the proposal {name} was {how}"
        if (late_s := expired_s(found.entry)) is not None and late_s > 0:
            return f"the proposal {name} expired {late_s:.0f} s ago"
        return None
