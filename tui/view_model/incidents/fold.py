"""Folds anomalies, commands and rollbacks of a journal into incidents."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from fttui.engine.protocol.commands import Recover, recorded_command, spec_of
from fttui.engine.protocol.events import AutopilotDecided
from fttui.engine.protocol.thresholds import RECURRENCE_NEWS

from ..branches import Branch, live_ends, value_on
from ..interventions import Intervention, Phase
from .alarm import UNSETTLED, Anomaly, undone
from .incident import Incident, IncidentState, ProbationSeen, RollbackMade

METRICS = {
    "spike": "loss",
    "divergence": "loss",
    "nonfinite": "loss",
    "grad_explosion": "grad_norm",
    "dead": "grad_norm",
    "throughput_drop": "tokens_per_s",
    "overfit": "eval.loss",
    "forgetting": "eval.forgetting.rise",
}
"""The curve that an alert of a kind is about; other kinds have none."""
BACK_STEPS = 20
"""Number of newest values whose median decides whether a metric is back at its usual value."""
BACK_SHARE = 0.25
"""A metric has come back if at most this share of its distance from the usual value is left."""
RECURS_FACTOR = 3.0
"""Mean distances between recurring peaks after which an incident is over if a peak is overdue.

A Poisson process has none for so long with a probability of 5 %. A report is due when the number of
peaks has grown by the factor `RECURRENCE_NEWS`.
"""
FORGOTTEN_STEPS = 200
"""Steps after which an alarm whose metric is not known no longer calls for anything."""


@dataclass(frozen=True)
class IncidentRecords:
    """What incidents are folded from; all of it comes from journal records."""

    anomalies: Sequence[Anomaly]
    commands: Iterable[Intervention]
    branches: Sequence[Branch]
    rollbacks: Sequence[RollbackMade]
    probations: Sequence[ProbationSeen]
    decisions: Mapping[str, AutopilotDecided]
    """Newest decision of the autopilot by the id of its anomaly."""
    step: int
    """The newest step."""


def incidents_of(records: IncidentRecords) -> tuple[Incident, ...]:
    """Return the incidents of a run, in the order of their first alarms."""
    groups: dict[str, list[Anomaly]] = {}
    for anomaly in records.anomalies:
        groups.setdefault(anomaly.incident or anomaly.event.id, []).append(anomaly)
    sent: dict[str, list[Intervention]] = {}
    for command in records.commands:
        if command.incident:
            sent.setdefault(command.incident, []).append(command)
    ends = live_ends(records.branches) if groups else {}
    levels = _levels(records)
    return tuple(
        _incident(id_, alarms, sent.get(id_, []), records, ends, levels)
        for id_, alarms in groups.items()
    )


def _incident(
    id_: str,
    alarms: list[Anomaly],
    commands: list[Intervention],
    records: IncidentRecords,
    ends: Mapping[int, float],
    levels: Mapping[str, float | None],
) -> Incident:
    on_course = [a for a in alarms if not undone(a, ends)]
    live = [a for a in on_course if not a.event.repeats or a.verdict == "not recovered"]
    unsettled = [a for a in live if a.verdict in UNSETTLED]
    pending = [a for a in unsettled if not _over(a, records.step, levels)]
    left = [a for a in alarms if undone(a, ends)]
    probation = next((p for p in reversed(records.probations) if _judges(p, alarms)), None)
    decisions = [records.decisions[a.event.id] for a in alarms if a.event.id in records.decisions]
    return Incident(
        id=id_,
        alarms=tuple(alarms),
        pending=tuple(pending),
        state=_unstable(on_course, pending, records.step)
        or _state(live, pending, commands, probation),
        commands=tuple(commands),
        rollbacks=tuple(r for r in records.rollbacks if any(_undoes(r, a) for a in left)),
        probation=None if probation is None else probation.event,
        decision=decisions[-1] if decisions else None,
    )


def _unstable(
    alarms: Sequence[Anomaly], pending: Sequence[Anomaly], step: int
) -> IncidentState | None:
    """Return the state of an incident whose peaks recur; None for every other one."""
    newest = next((a for a in reversed(alarms) if a.event.repeats), None)
    if newest is None or pending:
        return None
    event = newest.event
    due = math.ceil(RECURRENCE_NEWS * event.peaks) - event.peaks
    recurs = step - newest.step <= (due + RECURS_FACTOR) * event.every_steps
    return IncidentState.UNSTABLE if recurs else None


def _state(
    live: Sequence[Anomaly],
    pending: Sequence[Anomaly],
    commands: Sequence[Intervention],
    probation: ProbationSeen | None,
) -> IncidentState:
    if pending:
        return _pending_state(pending, commands)
    if live:
        recovered = all(a.verdict in {"recovered", "not recovered"} for a in live)
        return IncidentState.RECOVERED if recovered else IncidentState.CLEARED
    recoveries = [c for c in commands if _recovers(c) and c.phase is Phase.APPLIED]
    if not recoveries:
        return IncidentState.ABANDONED
    if probation is None or probation.time <= (recoveries[-1].time or 0.0):
        return IncidentState.RECOVERING
    return IncidentState.RECOVERED if probation.event.passed else IncidentState.ABANDONED


def _pending_state(pending: Sequence[Anomaly], commands: Sequence[Intervention]) -> IncidentState:
    newest = max(max(a.time, a.settled_at or 0.0) for a in pending)
    if any(treats(c) and (c.time or 0.0) >= newest for c in commands):
        return IncidentState.RECOVERING
    if any(a.event.severity == "alarm" for a in pending):
        return IncidentState.OPEN
    return IncidentState.WATCHED


def treats(command: Intervention) -> bool:
    """Whether a command was applied that changes how the weights are trained."""
    done = command.command or recorded_command(command.text)
    return command.phase is Phase.APPLIED and done is not None and spec_of(done).in_lineage


def _recovers(command: Intervention) -> bool:
    return isinstance(command.command or recorded_command(command.text), Recover)


def _undoes(rollback: RollbackMade, alarm: Anomaly) -> bool:
    event = rollback.event
    return rollback.time >= alarm.time and event.to_step < alarm.step <= event.from_step


def _judges(probation: ProbationSeen, alarms: Sequence[Anomaly]) -> bool:
    """Whether a probation followed a recovery from one of these alarms.

    The engine names the anomaly without the timeline that is part of its id in the journal.
    """
    named = probation.event.anomaly
    return any(
        probation.time >= a.time
        and named in (a.event.id, a.event.id.removesuffix(f"-t{a.timeline}"))
        for a in alarms
    )


def _over(alarm: Anomaly, step: int, levels: Mapping[str, float | None]) -> bool:
    """Whether the value of an alarm without a good verdict has come back since."""
    usual, then = alarm.event.baseline, alarm.event.value
    if not alarm.verdict or step - alarm.step < BACK_STEPS:
        return False
    now = levels.get(METRICS.get(alarm.event.repeats or alarm.event.kind, ""))
    if now is None:
        return step - alarm.step >= FORGOTTEN_STEPS
    if usual is None or then is None or not math.isfinite(then):
        return math.isfinite(now) and (usual is None or now <= usual * (1 + BACK_SHARE))
    return then == usual or (now - usual) / (then - usual) <= BACK_SHARE


def _levels(records: IncidentRecords) -> dict[str, float | None]:
    """Return the median of the newest values of every metric in `METRICS`; None without values."""
    if not any(a.verdict and a.verdict in UNSETTLED for a in records.anomalies):
        return {}
    return {name: _level(records, name) for name in set(METRICS.values())}


def _level(records: IncidentRecords, name: str) -> float | None:
    newest = len(records.branches) - 1
    steps = range(max(0, records.step - BACK_STEPS) + 1, records.step + 1)
    values = [value_on(records.branches, newest, name, step) for step in steps]
    known = [v for v in values if v is not None]
    return median(known) if known else None
