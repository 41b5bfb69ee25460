"""What earlier incarnations of a run left in its journal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ..protocol.codec import decode_record
from ..protocol.events import (
    AnomalyRaised,
    AnomalyResolved,
    CommandApplied,
    CommandFailed,
    RunEnded,
    RunStarted,
    StepFinished,
)


@dataclass(frozen=True)
class RunHistory:
    """A journal in short."""

    incarnations: int = 0
    timeline: int = 1
    step: int = 0
    """Last step finished on that timeline."""
    answered: frozenset[str] = frozenset()
    """Ids of commands that were applied or failed."""
    exit_code: int | None = None
    """Of the newest incarnation, when it ended with a word."""
    unresolved: Mapping[str, int] = field(default_factory=dict)
    """Anomalies without a verdict → the step they were raised at."""


def read_history(payloads: Iterable[bytes]) -> RunHistory:
    """Sum up a journal's records."""
    incarnations, timeline, step = 0, 1, 0
    answered, unresolved = set(), {}
    exit_code: int | None = None
    for record in filter(None, map(decode_record, payloads)):
        if record.timeline > timeline:
            timeline, step = record.timeline, record.step
        match record.event:
            case RunStarted(incarnation=number):
                incarnations, exit_code = max(incarnations, number), None
            case RunEnded(exit_code=code):
                exit_code = code
            case StepFinished():
                step = max(step, record.step)
            case CommandApplied(id=ident) | CommandFailed(id=ident):
                answered.add(ident)
            case AnomalyRaised(id=ident):
                unresolved[ident] = record.step
            case AnomalyResolved(id=ident):
                unresolved.pop(ident, None)
            case _:
                pass
    return RunHistory(incarnations, timeline, step, frozenset(answered), exit_code, unresolved)
