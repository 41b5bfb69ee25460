"""Gives every command that is open at the end of an engine an outcome, before the end is recorded.

The hub accepts commands until it reads the end of the run in the journal. So the last look at the
control journal and the record of the end happen while the hub cannot decide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set

from ...protocol.commands import Stop, describe_command
from ...protocol.events import AnyEvent, CommandAccepted, CommandApplied, CommandFailed
from ...run.control_log import ControlEntry


class UnansweredCommands:
    """Follows the outcomes of commands, and records the missing ones at the end."""

    def __init__(self, answered: Set[str], record: Callable[[AnyEvent], None]) -> None:
        """Begin to follow.

        Args:
            answered: ids of the commands that have an outcome in the journal.
            record: records an event.
        """
        self._answered = set(answered)
        self._accepted: set[str] = set()
        self._record = record

    def observe(self, event: AnyEvent) -> None:
        """Note the command that an event accepts, applies or fails; ignore other events."""
        match event:
            case CommandApplied(id=id_) | CommandFailed(id=id_):
                self._answered.add(id_)
            case CommandAccepted(id=id_):
                self._accepted.add(id_)
            case _:
                pass

    def conclude(self, entries: Iterable[ControlEntry], reason: str, stopped: str = "") -> None:
        """Record that the commands without an outcome had no effect.

        Those that were not yet recorded as accepted are recorded as such first.

        Args:
            entries: the accepted commands since the start of this engine.
            reason: why they had no effect.
            stopped: the effect of a stop command; empty if it had none either.
        """
        for entry in entries:
            if entry.id in self._answered:
                continue
            text = describe_command(entry.command)
            if entry.id not in self._accepted:
                self._record(
                    CommandAccepted(
                        id=entry.id, command=text, issuer=entry.issuer, reason=entry.reason
                    )
                )
            if stopped and isinstance(entry.command, Stop):
                self._record(_obeyed(entry, stopped))
            else:
                self._record(
                    CommandFailed(id=entry.id, command=text, reason=reason, issuer=entry.issuer)
                )


def _obeyed(entry: ControlEntry, what: str) -> CommandApplied:
    return CommandApplied(
        id=entry.id,
        command=describe_command(entry.command),
        old="loading",
        new=what,
        issuer=entry.issuer,
        reason=entry.reason,
        applied=entry.command,
    )
