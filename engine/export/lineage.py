"""What a run's journal says about the way to a checkpoint."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ..protocol.codec import decode_record
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
from ..run.journal import FrameReader
from ..run.run_dir import RunDirectory


@dataclass(frozen=True)
class LineageStep:
    """What somebody, or the autopilot, did to the run."""

    step: int
    timeline: int
    what: str
    issuer: str
    outcome: str = ""
    """old → new."""
    reason: str = ""


@dataclass
class Story:
    """How a checkpoint came about."""

    run: str
    facts: dict[str, str] = field(default_factory=dict)
    devices: list[str] = field(default_factory=list)
    evaluations: list[tuple[int, dict[str, float]]] = field(default_factory=list)
    """(step, metrics) on the way to it; what was rolled back is left out."""
    interventions: list[LineageStep] = field(default_factory=list)


def read_story(run: RunDirectory, manifest: Manifest) -> Story:
    """The story of a checkpoint from the journal, which may be growing."""
    records = (decode_record(payload) for payload in FrameReader(run.journal))
    return tell(run.id, (record for record in records if record is not None), manifest)


def tell(run: str, records: Iterable[Record], manifest: Manifest) -> Story:
    """The story up to the record that says the checkpoint was saved."""
    story = Story(run)
    for record in records:
        match record.event:
            case RunStarted(devices=devices, facts=facts) if devices:
                story.devices, story.facts = devices, facts
            case EvalFinished(metrics=metrics):
                story.evaluations.append((record.step, metrics))
            case RolledBack(to_step=to_step):
                story.evaluations = [one for one in story.evaluations if one[0] <= to_step]
            case CheckpointSaved(name=name) if name == manifest.name:
                return story
            case event:
                story.interventions += _interventions(record, event)
    return story


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
