"""Records of a journal as deliveries for trackers; pure."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from ...core.anomaly import ALARM
from ...protocol.benchmarks.result import BenchmarkFinished
from ...protocol.events import (
    AnomalyRaised,
    AnomalyResolved,
    AnyEvent,
    AutopilotDecided,
    CheckpointSaved,
    CommandAccepted,
    CommandApplied,
    CommandFailed,
    CulpritsFound,
    DataFindingsChanged,
    EvalFinished,
    NoteAdded,
    ProbationEnded,
    Record,
    RolledBack,
    RunEnded,
    RunStarted,
    SampleGenerated,
    StateChanged,
    StepFinished,
)
from ...protocol.races.variant_step import VariantStep
from ...protocol.states import RunState
from ..metrics import grouped, numbers
from .deliveries import Delivery, Note, Points, Sample, Timeline

_Kind = TypeVar("_Kind", Points, Note, Sample)
_GOES_BACK = ("rollback", "recover")
"""First words of the commands that begin a new timeline."""


class Story:
    """The timelines of a run, and what a tracker is given for each record, in their order."""

    def __init__(self) -> None:
        self.timelines = {1: Timeline(number=1)}
        self.ended: RunEnded | None = None
        """How the newest engine ended the run; None while it works."""
        self._wish = ""

    def add(self, record: Record) -> Delivery | None:
        """Take in the next record and return what trackers are given for it; None for most kinds.

        Kinds without a delivery: progress, changes of state, log lines, accepted commands, removed
        checkpoints, gradients, profiles and tests of learning rates.
        """
        self._follow(record)
        match record.event:
            case StepFinished() | EvalFinished() as event:
                metrics = {grouped(name): value for name, value in numbers(event).items()}
                return _placed(record, Points, metrics=metrics)
            case SampleGenerated(prompt=prompt, text=text):
                return _placed(record, Sample, prompt=prompt, text=text)
            case BenchmarkFinished(result=result) if result.timeline == record.timeline:
                metrics = {grouped(name): value for name, value in numbers(record.event).items()}
                placed = _placed(record, Points, metrics=metrics)
                return msgspec.structs.replace(placed, step=result.step)
            case VariantStep(at=step) as event:
                metrics = {grouped(name): value for name, value in numbers(event).items()}
                return msgspec.structs.replace(_placed(record, Points, metrics=metrics), step=step)
        if (words := note_words(record.event)) is None:
            return None
        kind, text = words
        return _placed(record, Note, kind=kind, text=text, alarm=is_alarm(record.event))

    def _follow(self, record: Record) -> None:
        match record.event:
            case RunStarted():
                self.ended = None
            case RunEnded() as event:
                self.ended = event
            case CommandAccepted(command=command) if command.startswith(_GOES_BACK):
                because = f": {record.event.reason}" if record.event.reason else ""
                self._wish = f" by {record.event.issuer}{because}"
            case RolledBack() as event:
                self.timelines[event.new_timeline] = Timeline(
                    number=event.new_timeline,
                    parent=event.old_timeline,
                    start_step=event.to_step,
                    reason=_went_back(event) + self._wish,
                )
                self._wish = ""
        if record.timeline not in self.timelines:
            # The record of the rollback was lost with a damaged part of the journal.
            before = max(self.timelines)
            self.timelines[record.timeline] = Timeline(
                number=record.timeline, parent=before, start_step=record.step
            )


def _placed(record: Record, made: type[_Kind], **fields: Any) -> _Kind:
    return made(
        seq=record.seq,
        time=record.time,
        step=record.step,
        timeline=record.timeline,
        **fields,
    )


def is_alarm(event: AnyEvent) -> bool:
    """Whether a person should look at an event soon."""
    match event:
        case AnomalyRaised(severity=severity):
            return severity == ALARM
        case StateChanged(state=RunState.HALTED):
            return True
        case RunEnded(state=state):
            return state in (RunState.FAILED, RunState.UNSAVED)
    return False


def note_words(event: AnyEvent) -> tuple[str, str] | None:
    """Return kind and text of the note about an event; None for events without a note."""
    return _of_run(event) or _of_command(event) or _of_anomaly(event)


def _of_run(event: AnyEvent) -> tuple[str, str] | None:
    found: tuple[str, str] | None = None
    match event:
        case RunStarted(devices=devices) if devices:
            found = "start", _started(event)
        case RunEnded():
            found = "end", f"{event.state.value}{': ' + event.error if event.error else ''}"
        case StateChanged(state=RunState.HALTED):
            found = "anomaly", f"halted: {event.detail}"
        case RolledBack():
            found = "rollback", _went_back(event)
        case CheckpointSaved():
            found = "checkpoint", _saved(event)
        case BenchmarkFinished(result=result):
            found = "note", result.text  # of an earlier timeline, whose tracker run is closed
        case NoteAdded(text=text):
            found = "note", f"{text} ({event.issuer})" if event.issuer else text
        case DataFindingsChanged(findings=findings) if findings:
            found = "data", "; ".join(finding.line for finding in findings)
        case _:
            pass
    return found


def _of_command(event: AnyEvent) -> tuple[str, str] | None:
    match event:
        case CommandApplied():
            return "command", f"{event.command}{_change(event)}{_origin(event)}"
        case CommandFailed(reason=reason):
            by = f" ({event.issuer})" if event.issuer else ""
            return "command", f"{event.command} failed: {reason}{by}"
    return None


def _of_anomaly(event: AnyEvent) -> tuple[str, str] | None:
    match event:
        case AnomalyRaised():
            kind = event.kind.replace("_", " ")
            return "anomaly", f"{event.severity}: {kind}: {event.headline}"
        case AnomalyResolved():
            return "anomaly", f"{event.id}: {event.verdict}"
        case AutopilotDecided():
            return "anomaly", f"autopilot: {event.decision}: {event.command} ({event.reason})"
        case ProbationEnded():
            how = "passed its probation" if event.passed else f"failed: {event.reason}"
            return "anomaly", f"the recovery to {event.checkpoint} {how}"
        case CulpritsFound(search=search):
            found = ", ".join(one.id for one in search.culprits) or "none"
            return "anomaly", f"search for culprits of {event.anomaly}: {search.verdict}: {found}"
    return None


def _started(event: RunStarted) -> str:
    how = f"resumed from {event.resumed_from}" if event.resumed_from else "started"
    text = f"{how} on {', '.join(event.devices)}: {event.model}"
    return "; ".join((text, *(finding.line for finding in event.findings)))


def _went_back(event: RolledBack) -> str:
    skipped = f", {event.skipped_batches} batches skipped" if event.skipped_batches else ""
    return f"rolled back from step {event.from_step} to {event.to_step}{skipped}"


def _saved(event: CheckpointSaved) -> str:
    loss = "" if event.loss is None else f", loss {event.loss:.4g}"
    kind = "" if event.good or event.mean_of else ", not a good rollback target"
    note = f": {event.note}" if event.note else ""
    return f"{event.name} ({event.size_bytes / 2**20:.1f} MiB{loss}{kind}){note}"


def _change(event: CommandApplied) -> str:
    return f" ({event.old} → {event.new})" if event.old or event.new else ""


def _origin(event: CommandApplied) -> str:
    by = f", by {event.issuer}" if event.issuer else ""
    return f"{by}{': ' + event.reason if event.reason else ''}"
