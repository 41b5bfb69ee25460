"""What earlier incarnations of a run left in its journal."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..protocol.codec import decode_record
from ..protocol.events import CommandApplied, CommandFailed, RunStarted, StepFinished


@dataclass(frozen=True)
class History:
    """A journal in short."""

    incarnations: int = 0
    timeline: int = 1
    step: int = 0
    """Last step finished on that timeline."""
    answered: frozenset[str] = frozenset()
    """Ids of commands that were applied or failed."""


def read_history(payloads: Iterable[bytes]) -> History:
    """Sum up a journal's records."""
    incarnations, timeline, step = 0, 1, 0
    answered = set()
    for record in filter(None, map(decode_record, payloads)):
        if record.timeline > timeline:
            timeline, step = record.timeline, record.step
        match record.event:
            case RunStarted(incarnation=number):
                incarnations = max(incarnations, number)
            case StepFinished():
                step = max(step, record.step)
            case CommandApplied(id=ident) | CommandFailed(id=ident):
                answered.add(ident)
            case _:
                pass
    return History(incarnations, timeline, step, frozenset(answered))
