"""A summary of a run's journal: position, status, results and what is still open."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ..protocol.codec import decode_record
from ..protocol.events import (
    AnomalyRaised,
    AnomalyResolved,
    CommandApplied,
    CommandFailed,
    ForgettingBaseMeasured,
    Record,
    RunStarted,
    StepFinished,
)
from ..protocol.settings import LearningRate
from ..protocol.usage.amounts import Usage
from ..protocol.usage.tally import UsageTally
from .run_status import LifecycleStatus


class JournalSummary:
    """The summary of the records added so far, which are added in the order of the journal."""

    def __init__(self) -> None:
        self.status = LifecycleStatus()
        self.newest: Record | None = None
        self.timeline = 1
        self.step = 0
        """The last step finished on the newest timeline."""
        self.total_steps = 0
        """The planned steps; 0 while unknown."""
        self.loss: float | None = None
        """The loss of the newest finished step."""
        self.learning_rate = LearningRate()
        """That of the newest finished step, with the scale of a later command."""
        self.answered: set[str] = set()
        """Ids of commands that were applied or failed."""
        self.unresolved: dict[str, int] = {}
        """Anomalies without a verdict → the step at which each was raised."""
        self.forgetting_base: ForgettingBaseMeasured | None = None
        """The newest loss of the base model on general texts."""
        self.tally = UsageTally()
        """What the run has used, as far as it was measured."""

    @property
    def used(self) -> Usage:
        """What the run has used up to its newest record."""
        return self.tally.up_to(self.newest.time if self.newest else None)

    def add(self, record: Record) -> None:
        """Take in the next record; a jump in sequence numbers means that records are missing."""
        if self.newest is not None and record.seq > self.newest.seq + 1:
            self.status.skip_events()
        before = self.newest.time if self.newest else None
        self.tally = self.tally.after(record.event, record.time, before)
        self.newest = record
        if record.timeline > self.timeline:
            self.timeline, self.step = record.timeline, record.step
        self.status.add(record.event, record.time, record.seq)
        match record.event:
            case RunStarted(total_steps=total_steps):
                self.total_steps = total_steps
            case StepFinished(loss=loss) as step:
                self.step, self.loss = max(self.step, record.step), loss
                self.learning_rate = step.rate
            case CommandApplied(id=ident, settings=settings):
                self.answered.add(ident)
                if settings is not None:
                    self.learning_rate = replace(self.learning_rate, scale=settings.lr_scale)
            case CommandFailed(id=ident):
                self.answered.add(ident)
            case _:
                self._note(record)

    def _note(self, record: Record) -> None:
        """Take in what evaluations and the detector have found."""
        match record.event:
            case ForgettingBaseMeasured() as base:
                self.forgetting_base = base
            case AnomalyRaised(id=ident):
                self.unresolved[ident] = record.step
            case AnomalyResolved(id=ident):
                self.unresolved.pop(ident, None)
            case _:
                pass


def summarize_records(records: Iterable[Record]) -> JournalSummary:
    """Summarize records, which are in the order of the journal."""
    summary = JournalSummary()
    for record in records:
        summary.add(record)
    return summary


def summarize_journal(payloads: Iterable[bytes]) -> JournalSummary:
    """Summarize encoded records; kinds that this version does not know are left out.

    Raises:
        DecodeError: a payload is not a record.
    """
    return summarize_records(filter(None, map(decode_record, payloads)))
