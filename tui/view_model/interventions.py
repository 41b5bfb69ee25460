"""The life of a command as a person sees it: sent → accepted → applied | failed, or rejected.

A pause that is taken up while a step is under way is applying until that step's boundary holds it.

Local submissions, the hub's answers and journal events all speak of the same command by its id;
they may come in any order, and an entry never goes back to an earlier phase.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import IntEnum

from fttui.engine.protocol.commands import AnyCommand

from .command_effect import change, effect

LIMIT = 1000
SHORTEST_VALUE = 4
"""Characters below which a value says nothing any more."""


class Phase(IntEnum):
    """How far a command has come; the last three are final."""

    SENT = 0
    ACCEPTED = 1
    APPLYING = 2
    APPLIED = 3
    FAILED = 4
    REJECTED = 5


@dataclass(frozen=True)
class Intervention:
    """One command and what became of it."""

    id: str
    text: str
    """As a person would type it."""
    issuer: str
    phase: Phase = Phase.SENT
    sent_at: float | None = None
    """Unix seconds on this machine; None for commands that others sent."""
    time: float | None = None
    """Wall time of the engine's newest word on it."""
    step: int | None = None
    """The finished steps when it took effect, or when it was accepted."""
    old: str = ""
    new: str = ""
    reason: str = ""
    """Why the person did it."""
    refusal: str = ""
    """Why it was rejected or failed."""
    seconds: float | None = None
    """From the hub's acceptance to the effect."""
    undo: AnyCommand | None = None
    """The command that restores the value before this one; None when there is none."""
    command: AnyCommand | None = None
    """The command once it was applied; None before, and for a kind that this version lacks."""

    @property
    def settled(self) -> bool:
        """Nothing more will happen to it."""
        return self.phase >= Phase.APPLIED

    def outcome(self, room: int = 200) -> str:
        """Such as `applied from 641 (1.00 → 0.50)`; the values shortened where room is short."""
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


@dataclass(frozen=True)
class Interventions:
    """All commands of the run, oldest first."""

    items: tuple[Intervention, ...] = ()

    def __iter__(self) -> Iterator[Intervention]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)

    def find(self, command_id: str) -> Intervention | None:
        """The entry with this id; looked for from the newest on."""
        return next((i for i in reversed(self.items) if i.id == command_id), None)

    def upsert(self, entry: Intervention) -> Interventions:
        """Add a new entry, or advance the one with the same id."""
        for at in range(len(self.items) - 1, -1, -1):
            known = self.items[at]
            if known.id == entry.id:
                merged = _advance(known, entry)
                return Interventions((*self.items[:at], merged, *self.items[at + 1 :]))
        return Interventions((*self.items, entry)[-LIMIT:])

    def held(self, step: int, time: float) -> Interventions:
        """What was pausing has paused."""
        return Interventions(
            tuple(
                replace(i, phase=Phase.APPLIED, step=step, time=time, seconds=_until(time, i))
                if i.phase is Phase.APPLYING
                else i
                for i in self.items
            )
        )

    def overtaken(self, why: str) -> Interventions:
        """What was pausing never will."""
        return Interventions(
            tuple(
                replace(i, phase=Phase.FAILED, refusal=why) if i.phase is Phase.APPLYING else i
                for i in self.items
            )
        )

    def why(self, item: Intervention) -> str:
        """The reason of an entry in words: an undo names the command that it undid."""
        undone = item.reason.startswith(UNDO) and self.find(item.reason.removeprefix(UNDO))
        return f"{UNDO}{undone.text}" if undone else item.reason

    def last_undoable(self) -> Intervention | None:
        """The newest change of a value that is in force and was not undone yet."""
        undone = {i.reason.removeprefix(UNDO) for i in self.items if i.reason.startswith(UNDO)}
        for item in reversed(self.items):
            if item.reason.startswith(UNDO) or item.id in undone:
                continue
            if item.phase is Phase.APPLIED and item.undo is not None:
                return item
        return None


UNDO = "undo "
"""Reason prefix of an undo; the id of the undone command follows, so every viewer can tell."""


def _until(time: float, item: Intervention) -> float | None:
    taken_up = item.time if item.time is not None else time
    return None if item.seconds is None else item.seconds + max(0.0, time - taken_up)


def _shortened(text: str, room: int) -> str:
    """Both ends of a text, `…` in the middle where it is longer than the room."""
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
    )
