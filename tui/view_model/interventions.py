"""The commands of a run and their phases: sent → accepted → applied | failed, or rejected.

A pause that the journal holds as applied before training was held is in the phase `APPLYING` until
training is held.
Local submissions, the hub's answers and journal events share the command's id. They arrive in any
order, and an entry never returns to an earlier phase.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import IntEnum

from fttui.engine.protocol.commands import AnyCommand, Propose, recorded_command
from fttui.engine.protocol.events import CommandAccepted

from .command_effect import change, effect

LIMIT = 1000
SHORTEST_VALUE = 4
"""Fewest characters to which a value is shortened."""


class Phase(IntEnum):
    """The phase of a command; the last three are final."""

    SENT = 0
    ACCEPTED = 1
    APPLYING = 2
    APPLIED = 3
    FAILED = 4
    REJECTED = 5


@dataclass(frozen=True)
class Intervention:
    """A command and its outcome."""

    id: str
    text: str
    """The command as a person would type it."""
    issuer: str
    phase: Phase = Phase.SENT
    sent_at: float | None = None
    """Unix seconds on this machine; None for commands of other viewers."""
    time: float | None = None
    """Unix seconds of the newest record about it; None before the first one."""
    step: int | None = None
    """Finished steps when it took effect or, before that, when it was accepted."""
    old: str = ""
    new: str = ""
    reason: str = ""
    """Why the person sent it."""
    refusal: str = ""
    """Why it was rejected or failed."""
    seconds: float | None = None
    """Seconds from the hub's acceptance to the effect; None before the effect."""
    undo: AnyCommand | None = None
    """The command that restores the settings before it; None if it cannot be undone."""
    command: AnyCommand | None = None
    """The command once it was applied; None before, and for a kind that this version lacks."""
    incident: str = ""
    """Id of the incident that it was sent for; empty if it was sent for none."""

    @property
    def settled(self) -> bool:
        """Whether the command was applied, rejected or failed, so that nothing more will follow."""
        return self.phase >= Phase.APPLIED

    def outcome(self, room: int = 200) -> str:
        """Return the outcome as text, such as `applied from 641 (1.00 → 0.50)`.

        The two values are shortened, or left out, to fit into `room` characters. Until there
        is an outcome, the text is the phase. Why it failed or was rejected is never shortened.
        """
        if self.phase in {Phase.FAILED, Phase.REJECTED}:
            return f"{self.phase.name.lower()}: {self.refusal}"
        if self.phase is Phase.APPLYING:
            return "pausing"
        if self.phase is not Phase.APPLIED or self.step is None:
            return self.phase.name.lower()
        what = effect(self.command, self.step)
        full = f"{what}{change(self.command, self.old, self.new)}"
        if len(full) <= room:
            return full
        each = (room - len(f"{what} ( → )")) // 2
        if self.old and self.new and each >= SHORTEST_VALUE:
            old, new = (_shortened(value, each) for value in (self.old, self.new))
            return f"{what} ({old} → {new})"
        return what


def overtaken_by(command: str) -> str:
    """Return why a pause failed: `command`, which resumes training, was applied before it.

    The engine records such pauses as failed; journals of earlier versions leave that to the viewer.
    """
    return f"{command} came before training had paused"


@dataclass(frozen=True)
class Interventions:
    """The newest `LIMIT` commands of the run, oldest first."""

    items: tuple[Intervention, ...] = ()

    def __iter__(self) -> Iterator[Intervention]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)

    def find(self, command_id: str) -> Intervention | None:
        """Return the newest entry with an id, or None."""
        return next((i for i in reversed(self.items) if i.id == command_id), None)

    def upsert(self, entry: Intervention) -> Interventions:
        """Return the list with a new entry; one of the same id is merged with it.

        The merged entry has the later phase of the two.
        """
        for at in range(len(self.items) - 1, -1, -1):
            known = self.items[at]
            if known.id == entry.id:
                merged = _advance(known, entry)
                return Interventions((*self.items[:at], merged, *self.items[at + 1 :]))
        return Interventions((*self.items, entry)[-LIMIT:])

    def held(self, step: int, time: float) -> Interventions:
        """Return the list with all pauses in the phase `APPLYING` marked as applied.

        `step` and `time` (Unix seconds) are those at which training was held.
        """
        return Interventions(
            tuple(
                replace(i, phase=Phase.APPLIED, step=step, time=time, seconds=_until(time, i))
                if i.phase is Phase.APPLYING
                else i
                for i in self.items
            )
        )

    def overtaken(self, why: str) -> Interventions:
        """Return the list in which pauses in the phase `APPLYING` have failed for a reason."""
        return Interventions(
            tuple(
                replace(i, phase=Phase.FAILED, refusal=why) if i.phase is Phase.APPLYING else i
                for i in self.items
            )
        )

    def why(self, item: Intervention) -> str:
        """Return the reason of an entry; an undo names the command that it undid if it is known."""
        undone = item.reason.startswith(UNDO) and self.find(item.reason.removeprefix(UNDO))
        return f"{UNDO}{undone.text}" if undone else item.reason

    def last_undoable(self) -> Intervention | None:
        """Return the newest applied command that can be undone and was not; None if there is none.

        An undo itself does not count, and one that was rejected or has failed undid nothing.
        """
        refused = {Phase.FAILED, Phase.REJECTED}
        undoes = (i for i in self.items if i.reason.startswith(UNDO) and i.phase not in refused)
        undone = {undo.reason.removeprefix(UNDO) for undo in undoes}
        for item in reversed(self.items):
            if item.reason.startswith(UNDO) or item.id in undone:
                continue
            if item.phase is Phase.APPLIED and item.undo is not None:
                return item
        return None


@dataclass(frozen=True)
class OpenProposal:
    """A proposed command that nobody has confirmed or declined yet."""

    name: str
    text: str
    """The proposed command as a person would type it."""
    command: AnyCommand | None
    """The proposed command; None for a kind that this version lacks."""
    issuer: str
    reason: str
    expires_at: float
    """Unix seconds."""


def proposals_after(
    known: tuple[OpenProposal, ...], event: CommandAccepted
) -> tuple[OpenProposal, ...]:
    """Return the proposals after an accepted command, which may make one or close one."""
    if not event.proposal:
        return known
    others = tuple(p for p in known if p.name != event.proposal)
    if event.expires_at is None:
        return others
    made = recorded_command(event.command)
    opened = OpenProposal(
        name=event.proposal,
        text=event.command.removeprefix("propose "),
        command=made.command if isinstance(made, Propose) else None,
        issuer=event.issuer,
        reason=event.reason,
        expires_at=event.expires_at,
    )
    return (*others, opened)[-LIMIT:]


UNDO = "undo "
"""Prefix of the reason of an undo. The id of the undone command follows, so that all viewers know
what was undone."""


def _until(time: float, item: Intervention) -> float | None:
    taken_up = item.time if item.time is not None else time
    return None if item.seconds is None else item.seconds + max(0.0, time - taken_up)


def _shortened(text: str, room: int) -> str:
    """Return a text with `…` in place of its middle if it is longer than the room."""
    if len(text) <= room:
        return text
    tail = room // 2
    return f"{text[: room - tail - 1]}…{text[-tail:]}"


def _advance(known: Intervention, entry: Intervention) -> Intervention:
    if entry.phase < known.phase:
        known, entry = entry, known
    return replace(
        entry,
        text=entry.text or known.text,
        issuer=entry.issuer or known.issuer,
        sent_at=known.sent_at if entry.sent_at is None else entry.sent_at,
        step=known.step if entry.step is None else entry.step,
        time=known.time if entry.time is None else entry.time,
        reason=entry.reason or known.reason,
        old=entry.old or known.old,
        new=entry.new or known.new,
        seconds=known.seconds if entry.seconds is None else entry.seconds,
        refusal=entry.refusal or known.refusal,
        undo=known.undo if entry.undo is None else entry.undo,
        command=known.command if entry.command is None else entry.command,
        incident=entry.incident or known.incident,
    )
