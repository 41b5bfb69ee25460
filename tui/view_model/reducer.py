"""The reducer of the app: `apply(view, record)` returns the view of a run after one more record.

A view comes from journal records alone, so a live run, a reconnect and an ended run read from disk
give the same view. Consecutive steps are added together, column by column, because that is fast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import groupby
from typing import Any

import msgspec
import numpy as np

from fttui.engine.protocol.benchmarks.result import BenchmarkFinished
from fttui.engine.protocol.chat.events import ChatAnswered, ChatAsked, ChatContinued, ChatEvent
from fttui.engine.protocol.commands import AnyCommand, Decline, Propose
from fttui.engine.protocol.events import (
    AnomalyRaised,
    AnomalyResolved,
    AutopilotDecided,
    CheckpointRemoved,
    CheckpointSaved,
    CommandAccepted,
    CommandApplied,
    CommandFailed,
    CulpritsFound,
    DataFindingsChanged,
    EvalFinished,
    GradientsMeasured,
    LogEmitted,
    NoteAdded,
    ProbationEnded,
    ProgressMade,
    Record,
    RolledBack,
    RunEnded,
    RunStarted,
    SampleGenerated,
    StateChanged,
    StepFinished,
    StepsProfiled,
)
from fttui.engine.protocol.races.variant_step import VariantStep
from fttui.engine.protocol.settings import RunSettings
from fttui.engine.protocol.states import RunState

from .chat.exchange import folded
from .command_effect import holds
from .incidents.alarm import Anomaly, incident_of
from .incidents.cause import incident_meant
from .incidents.incident import ProbationSeen, RollbackMade
from .interventions import Intervention, Phase, overtaken_by, proposals_after
from .run_view import PACE_WINDOW, CheckpointView, GeneratedSample, LogLine, Mark, RunView
from .start.stages import after_record
from .step_batch import RecordBatch, Steps, steps_of

LOG_LIMIT = 2000
LIST_LIMIT = 1000


def apply(view: RunView, record: Record) -> RunView:
    """Return the view after one more record."""
    return apply_many(view, (record,))


def apply_many(view: RunView, records: Iterable[Record]) -> RunView:
    """Return the view after more records; those it already contains change nothing."""
    fresh = _fresh(records, view.seq)
    for is_step, group in groupby(fresh, key=lambda r: isinstance(r.event, StepFinished)):
        if is_step:
            for steps in steps_of(list(group)):
                view = _add_steps(view, steps)
        else:
            for record in group:
                view = _add_event(view, record)
    return view


def apply_batch(view: RunView, batch: RecordBatch) -> RunView:
    """Return the view after a batch of records; those it already contains change nothing."""
    records: list[Record] = []
    for part in batch.parts:
        if isinstance(part, Record):
            records.append(part)
            continue
        view, records = apply_many(view, records), []
        if (steps := part.after(view.seq)) is not None:
            view = _add_steps(view, steps)
    view = apply_many(view, records)
    return replace(view, unknown=view.unknown + batch.unknown) if batch.unknown else view


def _fresh(records: Iterable[Record], seq: int) -> Iterator[Record]:
    for record in records:
        if record.seq > seq:
            seq = record.seq
            yield record


def _add_steps(view: RunView, steps: Steps) -> RunView:
    view = _on_branch(view, steps.timeline, int(steps.step[0]) - 1)
    last, newest = steps.last, steps.last.event
    if not isinstance(newest, StepFinished):
        return view
    return replace(
        view,
        seq=last.seq,
        time=last.time,
        step=last.step,
        last=newest,
        last_step_at=last.time,
        pace=view.pace.extend(steps.time[-PACE_WINDOW - 1 :].tolist()),
        branches=(*view.branches[:-1], view.branch.extend(steps)),
        steps_seen=view.steps_seen + len(steps),
        tokens_seen=view.tokens_seen + _sum(steps, "tokens"),
        lr_scale=newest.lr_scale,
        clip=newest.clip,
        progress=None,
        tally=view.tally.after(newest, last.time, view.time),
    )


def _sum(steps: Steps, name: str) -> int:
    column = steps.columns.get(name)
    return 0 if column is None else int(np.nansum(column))


def _on_branch(view: RunView, timeline: int, step: int) -> RunView:
    """Return the view with a new branch, if what follows `step` does not continue the newest one.

    It does if it is on the same timeline and the newest branch has no later steps.
    """
    branch = view.branch
    if timeline == branch.timeline and step >= branch.last_step:
        return view
    parent = len(view.branches) - 1
    return replace(
        view, branches=(*view.branches, branch.fork(timeline, step, parent)), timeline=timeline
    )


def _add_event(view: RunView, record: Record) -> RunView:
    stages = after_record(view.stages, record) if view.last is None else view.stages
    tally = view.tally.after(record.event, record.time, view.time)
    late = isinstance(record.event, BenchmarkFinished) and record.event.after_end
    time = view.time if late else record.time  # no time of the run
    view = replace(view, seq=record.seq, time=time, step=record.step, stages=stages, tally=tally)
    handler = _HANDLERS.get(type(record.event))
    return handler(view, record, record.event) if handler else view


def _run_started(view: RunView, record: Record, event: RunStarted) -> RunView:
    view = replace(
        view,
        started=event,
        findings=tuple(event.findings),
        started_at=view.started_at or record.time,
        state=RunState.STARTING,
        state_since=record.time,
        detail="",
        ended=None,
        pace=view.pace.restarted(),
    )
    if event.resumed_from is None:
        return view
    return _on_branch(view, record.timeline, event.start_step)


def _data_findings_changed(view: RunView, record: Record, event: DataFindingsChanged) -> RunView:
    return replace(view, findings=tuple(event.findings))


def _state_changed(view: RunView, record: Record, event: StateChanged) -> RunView:
    held = event.state.held
    done = held or event.state is RunState.RUNNING
    known = view.interventions
    return replace(
        view,
        interventions=known.held(record.step, record.time) if held else known,
        state=event.state,
        detail=event.detail,
        state_since=record.time,
        progress=None if done else view.progress,
        pace=view.pace.restarted() if event.state is not RunState.RUNNING else view.pace,
    )


def _culprits_found(view: RunView, record: Record, event: CulpritsFound) -> RunView:
    """End the progress of the search; the report and the log have its result."""
    return replace(view, progress=None)


def _progress_made(view: RunView, record: Record, event: ProgressMade) -> RunView:
    return replace(view, progress=event)


def _eval_finished(view: RunView, record: Record, event: EvalFinished) -> RunView:
    branches = (*view.branches[:-1], view.branch.evaluated(record.step, event))
    loss = event.metrics.get("loss")
    text = "evaluation" if loss is None else f"evaluation, loss {loss:.3f}"
    return _mark(
        replace(view, branches=branches, evaluation=event, progress=None), record, "eval", text
    )


def _variant_step(view: RunView, record: Record, event: VariantStep) -> RunView:
    """Add a step of a variant that trained beside the run; the run stays at its own step."""
    return replace(view, branches=(*view.branches[:-1], view.branch.trained_beside(event)))


def _benchmark_finished(view: RunView, record: Record, event: BenchmarkFinished) -> RunView:
    """Add the result at the step of its checkpoint, on the branch that wrote it."""
    result = event.result
    index = _branch_at(view, result.timeline, result.step)
    branches = list(view.branches)
    values = {**result.metrics, **result.changes}
    branches[index] = branches[index].measured(result.step, values)
    line = LogLine(record.time, "warning" if result.error else "info", result.text)
    mark = Mark(result.step, record.time, index, "eval", result.text)
    return replace(
        view,
        branches=tuple(branches),
        benchmarks=(*view.benchmarks, result)[-LIST_LIMIT:],
        marks=view.marks if result.error else (*view.marks, mark)[-LIST_LIMIT:],
        log=(*view.log[1 - LOG_LIMIT :], line),
    )


def _branch_at(view: RunView, timeline: int, step: int) -> int:
    """Return the index of the newest branch that a step of a timeline may belong to."""
    fitting = [
        index
        for index, branch in enumerate(view.branches)
        if branch.timeline == timeline and branch.start <= step
    ]
    return fitting[-1] if fitting else len(view.branches) - 1


def _checkpoint_saved(view: RunView, record: Record, event: CheckpointSaved) -> RunView:
    saved = CheckpointView(
        name=event.name,
        step=record.step,
        timeline=record.timeline,
        time=record.time,
        size_bytes=event.size_bytes,
        good=event.good,
        pinned=event.pinned,
        note=event.note,
        loss=event.loss,
        used=view.used,
        mean=bool(event.mean_of),
    )
    others = tuple(c for c in view.checkpoints if c.name != event.name)
    view = replace(view, checkpoints=(*others, saved), progress=None)
    return _mark(view, record, "checkpoint", f"checkpoint {event.name}")


def _checkpoint_removed(view: RunView, record: Record, event: CheckpointRemoved) -> RunView:
    return replace(view, checkpoints=tuple(c for c in view.checkpoints if c.name != event.name))


def _rolled_back(view: RunView, record: Record, event: RolledBack) -> RunView:
    source = next((c for c in view.checkpoints if c.name == event.checkpoint), None)
    wanted = source.timeline if source else event.old_timeline
    parent = len(view.branches) - 1
    for index, branch in enumerate(view.branches):
        if branch.timeline == wanted and branch.start <= event.to_step:
            parent = index
    branch = view.branches[parent].fork(event.new_timeline, event.to_step, parent)
    view = replace(
        view,
        branches=(*view.branches, branch),
        rollbacks=(*view.rollbacks, RollbackMade(record.time, event))[-LIST_LIMIT:],
        timeline=event.new_timeline,
        step=event.to_step,
        pace=view.pace.restarted(),
        progress=None,
    )
    text = f"rolled back from {event.from_step:,} to {event.to_step:,}"
    return _mark(view, record, "rollback", text, step=event.to_step)


def _command_accepted(view: RunView, record: Record, event: CommandAccepted) -> RunView:
    view = replace(view, proposals=proposals_after(view.proposals, event))
    return _intervene(view, record, event, Phase.ACCEPTED, reason=event.reason)


def _command_applied(view: RunView, record: Record, event: CommandApplied) -> RunView:
    command, spec = event.typed, event.spec
    if spec is not None and spec.resumes:
        view = replace(
            view, interventions=view.interventions.overtaken(overtaken_by(event.command))
        )
    waits = holds(command) and not view.state.held
    view = _intervene(
        view,
        record,
        event,
        Phase.APPLYING if waits else Phase.APPLIED,
        old=event.old,
        new=event.new,
        reason=event.reason,
        seconds=event.seconds,
        command=command,
        undo=_undo(view, event),
    )
    if not isinstance(command, Propose | Decline):
        view = _mark(view, record, "command", event.command)
    return replace(view, **_changed(event))


def _undo(view: RunView, event: CommandApplied) -> AnyCommand | None:
    command, spec = event.typed, event.spec
    if command is None or spec is None or spec.undo is None:
        return None
    return spec.undo(command, event.previous or _settings_before(view, event))


def _settings_before(view: RunView, event: CommandApplied) -> RunSettings:
    """Return the settings before a command, for a journal whose records do not hold them."""
    settings = RunSettings(lr_scale=view.lr_scale, clip=view.clip)
    policy, _, value = event.old.partition(" ")
    if policy in {"nonfinite", "autopilot"}:
        settings = msgspec.structs.replace(settings, **{policy: value})
    return settings


def _changed(event: CommandApplied) -> dict[str, Any]:
    """Return the fields of the view that a command changed, before the next step reports them."""
    names = ("lr_scale", "clip") if event.settings else ()
    values = {name: getattr(event.settings, name) for name in names}
    return {name: new for name, new in values.items() if new != getattr(event.previous, name, None)}


def _command_failed(view: RunView, record: Record, event: CommandFailed) -> RunView:
    return _intervene(view, record, event, Phase.FAILED, refusal=event.reason)


def _intervene(
    view: RunView,
    record: Record,
    event: CommandAccepted | CommandApplied | CommandFailed,
    phase: Phase,
    **known: Any,
) -> RunView:
    sent = view.interventions.find(event.id)
    meant = incident_meant(event, view.anomalies, view.branches, view.rollbacks)
    entry = Intervention(
        id=event.id,
        text=event.command,
        issuer=event.issuer,
        phase=phase,
        incident=(sent.incident if sent else "") or meant,
        step=record.step,
        time=record.time,
        **known,
    )
    return replace(view, interventions=view.interventions.upsert(entry))


def _anomaly_raised(view: RunView, record: Record, event: AnomalyRaised) -> RunView:
    raised = Anomaly(
        record.step,
        record.time,
        record.timeline,
        event,
        incident=incident_of(event, record.step, view.anomalies),
        branch=len(view.branches) - 1,
    )
    view = replace(view, anomalies=(*view.anomalies, raised)[-LIST_LIMIT:])
    return _mark(view, record, event.severity, event.headline)


def _anomaly_resolved(view: RunView, record: Record, event: AnomalyResolved) -> RunView:
    settled = tuple(
        replace(a, verdict=event.verdict, settled_at=record.time) if a.event.id == event.id else a
        for a in view.anomalies
    )
    return replace(view, anomalies=settled)


def _probation_ended(view: RunView, record: Record, event: ProbationEnded) -> RunView:
    ended = ProbationSeen(record.time, event)
    view = replace(view, probations=(*view.probations, ended)[-LIST_LIMIT:])
    verdict = "recovery passed its probation" if event.passed else "recovery failed its probation"
    return _mark(view, record, "verdict", f"{verdict}: {event.reason}")


def _autopilot_decided(view: RunView, record: Record, event: AutopilotDecided) -> RunView:
    text = f"autopilot: {event.decision} {event.command}".rstrip()
    text = f"{text} ({event.reason})" if event.reason else text
    line = LogLine(record.time, "info", text, anomaly=event.anomaly)
    decisions = {**view.decisions, event.anomaly: event}
    return replace(view, decisions=decisions, log=(*view.log[1 - LOG_LIMIT :], line))


def _gradients_measured(view: RunView, record: Record, event: GradientsMeasured) -> RunView:
    return replace(
        view, gradients=event, gradients_at=record.step, gradients_on=len(view.branches) - 1
    )


def _steps_profiled(view: RunView, record: Record, event: StepsProfiled) -> RunView:
    advice = event.advice[0] if event.advice else "nothing stands out"
    line = LogLine(
        record.time, "info", f"profile at step {record.step}: {advice} (see the system screen)"
    )
    view = replace(view, profile=event, profiled_at=record.step)
    return replace(view, log=(*view.log[1 - LOG_LIMIT :], line))


def _note_added(view: RunView, record: Record, event: NoteAdded) -> RunView:
    return _mark(view, record, "note", event.text)


def _log_emitted(view: RunView, record: Record, event: LogEmitted) -> RunView:
    line = LogLine(record.time, event.level, event.text, event.rank)
    return replace(view, log=(*view.log[1 - LOG_LIMIT :], line))


def _sample_generated(view: RunView, record: Record, event: SampleGenerated) -> RunView:
    sample = GeneratedSample(record.step, record.time, event.prompt, event.text)
    return replace(view, samples=(*view.samples, sample)[-LIST_LIMIT:])


def _chatted(view: RunView, record: Record, event: ChatEvent) -> RunView:
    return replace(view, chats=folded(view.chats, record, event)[-LIST_LIMIT:])


def _run_ended(view: RunView, record: Record, event: RunEnded) -> RunView:
    view = replace(
        view, interventions=view.interventions.overtaken("the run ended before training had paused")
    )
    return replace(
        view, ended=event, state=event.state, state_since=record.time, detail="", progress=None
    )


def _mark(view: RunView, record: Record, kind: str, text: str, step: int | None = None) -> RunView:
    place = record.step if step is None else step
    mark = Mark(place, record.time, len(view.branches) - 1, kind, text)
    return replace(view, marks=(*view.marks, mark)[-LIST_LIMIT:])


_HANDLERS: dict[type, Callable[[RunView, Record, Any], RunView]] = {
    RunStarted: _run_started,
    StateChanged: _state_changed,
    ProgressMade: _progress_made,
    CulpritsFound: _culprits_found,
    EvalFinished: _eval_finished,
    BenchmarkFinished: _benchmark_finished,
    VariantStep: _variant_step,
    CheckpointSaved: _checkpoint_saved,
    CheckpointRemoved: _checkpoint_removed,
    RolledBack: _rolled_back,
    CommandAccepted: _command_accepted,
    CommandApplied: _command_applied,
    CommandFailed: _command_failed,
    AnomalyRaised: _anomaly_raised,
    AnomalyResolved: _anomaly_resolved,
    ProbationEnded: _probation_ended,
    AutopilotDecided: _autopilot_decided,
    GradientsMeasured: _gradients_measured,
    StepsProfiled: _steps_profiled,
    NoteAdded: _note_added,
    LogEmitted: _log_emitted,
    SampleGenerated: _sample_generated,
    ChatAsked: _chatted,
    ChatContinued: _chatted,
    ChatAnswered: _chatted,
    RunEnded: _run_ended,
    DataFindingsChanged: _data_findings_changed,
}
