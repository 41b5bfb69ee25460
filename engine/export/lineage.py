"""Collect the lineage of a checkpoint from the journal: evaluations, interventions, run facts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ..protocol.benchmarks.result import BenchmarkFinished, BenchmarkResult
from ..protocol.event_parts import DataFinding
from ..protocol.events import (
    CheckpointSaved,
    CommandApplied,
    EvalFinished,
    NoteAdded,
    Record,
    RolledBack,
    RunStarted,
)
from ..run.checkpoint_store import Manifest
from ..run.records.record_feed import read_whole
from ..run.run_dir import RunDirectory


@dataclass(frozen=True)
class LineageStep:
    """An intervention in the run, by a person, the guard or the autopilot."""

    step: int
    timeline: int
    what: str
    issuer: str
    outcome: str = ""
    """The value before and after, such as `1 → 0.5`, or what the command did."""
    reason: str = ""


@dataclass
class Lineage:
    """What led to a checkpoint, as the model card shows it: data, evaluations, interventions."""

    run: str
    facts: dict[str, str] = field(default_factory=dict)
    findings: list[DataFinding] = field(default_factory=list)
    devices: list[str] = field(default_factory=list)
    evaluations: list[tuple[int, dict[str, float]]] = field(default_factory=list)
    """(step, metrics) of the evaluations up to the checkpoint, without those rolled back."""
    benchmarks: dict[str, BenchmarkResult] = field(default_factory=dict)
    """The newest result of each benchmark on the checkpoint, by task."""
    interventions: list[LineageStep] = field(default_factory=list)
    not_read: list[str] = field(default_factory=list)
    """What of the journal could not be read, in words; interventions may be missing."""


def read_lineage(run: RunDirectory, manifest: Manifest) -> Lineage:
    """Collect the lineage of a checkpoint from the journal of a run that may be training.

    Of the journal, `not_read` names what this version cannot read.

    Raises:
        OSError: the journal cannot be read, or is a link.
    """
    records, not_read = read_whole(run)
    lineage = lineage_of(run.id, records, manifest)
    lineage.not_read = not_read
    return lineage


def lineage_of(run: str, records: Iterable[Record], manifest: Manifest) -> Lineage:
    """Collect the lineage from the records up to the one that reports the checkpoint as saved.

    If none reports it, all records count. Benchmarks are measured on a checkpoint later, so they
    count in any case.
    """
    lineage, saved = Lineage(run), False
    for record in records:
        if isinstance(record.event, BenchmarkFinished):
            result = record.event.result
            if result.checkpoint == manifest.name and result.scores:
                lineage.benchmarks[result.task] = result
        elif not saved:
            saved = _add(lineage, record, manifest)
    return lineage


def _add(lineage: Lineage, record: Record, manifest: Manifest) -> bool:
    """Add a record; return whether it is the one that reports the checkpoint as saved."""
    match record.event:
        case RunStarted() as started if started.devices:
            lineage.devices, lineage.facts = started.devices, started.facts
            lineage.findings = started.findings
        case EvalFinished(metrics=metrics):
            lineage.evaluations.append((record.step, metrics))
        case RolledBack(to_step=to_step):
            lineage.evaluations = [one for one in lineage.evaluations if one[0] <= to_step]
        case CheckpointSaved(name=name) if name == manifest.name:
            return True
        case event:
            lineage.interventions += _interventions(record, event)
    return False


def _interventions(record: Record, event: object) -> list[LineageStep]:
    place = record.step, record.timeline
    match event:
        case NoteAdded(text=text, issuer=issuer):
            return [LineageStep(*place, f"note {text}", issuer)]
        case CommandApplied(command=command) if event.spec is not None and event.spec.in_lineage:
            outcome = f"{event.old} → {event.new}" if event.old else event.new
            return [LineageStep(*place, command, event.issuer, outcome, event.reason)]
        case _:
            return []
