"""The frozen view of a run that every screen is drawn from, and the values it is made of."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from statistics import median

from fttui.engine.protocol.benchmarks.result import BenchmarkResult
from fttui.engine.protocol.event_parts import DataFinding
from fttui.engine.protocol.events import (
    AutopilotDecided,
    EvalFinished,
    GradientsMeasured,
    ProgressMade,
    RunEnded,
    RunStarted,
    StepFinished,
    StepsProfiled,
)
from fttui.engine.protocol.states import RunState
from fttui.engine.protocol.usage.amounts import Usage
from fttui.engine.protocol.usage.tally import UsageTally

from .branches import CLIPPED, EVAL, USAGE, Branch, live_ends, series_on, value_on
from .chat.exchange import Exchanges
from .incidents.alarm import Anomaly
from .incidents.fold import IncidentRecords, incidents_of
from .incidents.incident import Incident, ProbationSeen, RollbackMade, current_of
from .interventions import Interventions, OpenProposal
from .start.stages import StartStage

PACE_WINDOW = 64
"""Number of newest intervals between steps whose median is the pace."""


@dataclass(frozen=True)
class Pace:
    """The pace of training: the newest intervals between steps and their median.

    The median ignores pauses and evaluations, which are outliers. Times are those of the records.
    """

    intervals_s: tuple[float, ...] = ()
    newest_s: float | None = None
    """Unix seconds of the newest step; None before the first one and after an interruption."""

    def extend(self, times: Sequence[float]) -> Pace:
        """Return the pace after more steps, which ended at `times` (Unix seconds, ascending)."""
        if not times:
            return self
        recent = [*([] if self.newest_s is None else [self.newest_s]), *times][-PACE_WINDOW - 1 :]
        gaps = tuple(max(0.0, b - a) for a, b in pairwise(recent))
        return Pace((*self.intervals_s, *gaps)[-PACE_WINDOW:], times[-1])

    def restarted(self) -> Pace:
        """Return the pace that ignores the next interval, because training was interrupted."""
        return Pace(self.intervals_s, None)

    @property
    def step_s(self) -> float | None:
        """Median seconds per step; None before the first interval, which needs two steps."""
        return median(self.intervals_s) if self.intervals_s else None

    def remaining_s(self, steps_left: int) -> float | None:
        """Return the seconds until that many more steps are done; None while unknown."""
        return None if self.step_s is None else self.step_s * max(0, steps_left)


@dataclass(frozen=True)
class CheckpointView:
    """A checkpoint that is still on disk."""

    name: str
    step: int
    timeline: int
    time: float
    size_bytes: int
    good: bool
    pinned: bool
    note: str
    loss: float | None
    used: Usage = field(default_factory=Usage)
    """What the run had used when it was written."""
    mean: bool = False
    """Whether it is the mean of other checkpoints, where training has never been."""


@dataclass(frozen=True)
class Mark:
    """An event to which the cursor can move; most kinds have a sign on the x axis of the plots."""

    step: int
    time: float
    branch: int
    """Index in `RunView.branches` of the branch that it happened on."""
    kind: str
    """Such as `alarm`, `checkpoint` or `eval`; only kinds in `MARK_SHAPE` have a sign."""
    text: str


@dataclass(frozen=True)
class LogLine:
    """A line of the log."""

    time: float
    level: str
    text: str
    rank: int = 0
    anomaly: str = ""
    """Id of the anomaly that it is about; empty for any other line."""


@dataclass(frozen=True)
class GeneratedSample:
    """A text that the model generated during training."""

    step: int
    time: float
    prompt: str
    text: str


@dataclass(frozen=True)
class RunView:
    """The run as far as its journal has been read."""

    started: RunStarted | None = None
    findings: tuple[DataFinding, ...] = ()
    """What was dropped, cut, masked, ignored or guessed in the data."""
    started_at: float | None = None
    """Wall time of the first start."""
    state: RunState = RunState.STARTING
    detail: str = ""
    state_since: float | None = None
    step: int = 0
    timeline: int = 1
    seq: int = 0
    time: float | None = None
    """Wall time of the newest record."""
    last: StepFinished | None = None
    last_step_at: float | None = None
    pace: Pace = field(default_factory=Pace)
    progress: ProgressMade | None = None
    stages: tuple[StartStage, ...] = ()
    """The stages of the start, until the first step."""
    branches: tuple[Branch, ...] = (Branch(),)
    steps_seen: int = 0
    tokens_seen: int = 0
    lr_scale: float = 1.0
    """Factor by which the next update multiplies the schedule's learning rate."""
    clip: float | None = None
    """Maximum gradient norm; None if clipping is off."""
    evaluation: EvalFinished | None = None
    checkpoints: tuple[CheckpointView, ...] = ()
    benchmarks: tuple[BenchmarkResult, ...] = ()
    """The results of benchmarks, in the order in which they were recorded."""
    anomalies: tuple[Anomaly, ...] = ()
    interventions: Interventions = field(default_factory=Interventions)
    proposals: tuple[OpenProposal, ...] = ()
    """Proposals that nobody has confirmed or declined, the oldest first; some may have expired."""
    marks: tuple[Mark, ...] = ()
    log: tuple[LogLine, ...] = ()
    samples: tuple[GeneratedSample, ...] = ()
    chats: Exchanges = ()
    """Prompts to base and current weights with their answers, the oldest first."""
    rollbacks: tuple[RollbackMade, ...] = ()
    probations: tuple[ProbationSeen, ...] = ()
    """The probations that have ended."""
    decisions: Mapping[str, AutopilotDecided] = field(default_factory=dict)
    """The autopilot's newest decision by the id of its anomaly."""
    gradients: GradientsMeasured | None = None
    """The newest measurement of gradients by module."""
    gradients_at: int = 0
    """Step of that measurement."""
    gradients_on: int = 0
    """Index of the branch of that measurement."""
    profile: StepsProfiled | None = None
    """The newest profile."""
    profiled_at: int = 0
    """Step of that profile."""
    tally: UsageTally = field(default_factory=UsageTally)
    """What the run has used, with its prices and its budget."""
    ended: RunEnded | None = None
    unknown: int = 0
    """Number of records of event kinds that this version does not know."""

    @property
    def branch(self) -> Branch:
        """The newest branch, on which training continues."""
        return self.branches[-1]

    def live_marks(self) -> tuple[Mark, ...]:
        """Return the events at steps that the current weights descend from, on their branches."""
        ends = live_ends(self.branches)
        return tuple(m for m in self.marks if m.step <= ends.get(m.branch, -math.inf))

    @property
    def gradients_live(self) -> bool:
        """Whether the current weights descend from the step of the gradient measurement."""
        return self.gradients_at <= live_ends(self.branches).get(self.gradients_on, -math.inf)

    def live_value(self, name: str, step: float = math.inf) -> float | None:
        """Return a metric at a step of the live history, or at the nearest earlier with a value.

        The live history is all steps that the current weights descend from. Without a step it is
        the newest value; None if the live history has none up to that step.
        """
        return value_on(self.branches, len(self.branches) - 1, name, step)

    @property
    def best_eval_loss(self) -> float | None:
        """The lowest finite evaluation loss of the live history; None without one."""
        losses = series_on(self.branches, len(self.branches) - 1, f"{EVAL}loss")
        return min((y for y in losses if math.isfinite(y)), default=None)

    @property
    def clipped_share(self) -> float:
        """The share of the live history's updates that were clipped, from 0 to 1."""
        return (self.live_value(CLIPPED) or 0.0) / max(1, self.step)

    @property
    def used(self) -> Usage:
        """What the run has used up to its newest record."""
        return self.tally.up_to(self.time)

    def used_at(self, step: int) -> Usage | None:
        """Return what the run had used at a step of the live history; None if unknown."""
        known = {name: self.live_value(f"{USAGE}{name}", step) for name in Usage.__struct_fields__}
        if known["seconds"] is None:
            return None
        return Usage(**{name: value for name, value in known.items() if value is not None})

    def open_proposals(self, now: float) -> tuple[OpenProposal, ...]:
        """Return the proposals that have not expired at `now`, the oldest first.

        `now` is in Unix seconds by the clock of the run's machine.
        """
        return tuple(p for p in self.proposals if p.expires_at > now)

    @property
    def total_steps(self) -> int:
        """Number of planned steps; 0 while unknown."""
        return self.started.total_steps if self.started else 0

    @property
    def eta_s(self) -> float | None:
        """Seconds to the planned end at the current pace; None while unknown."""
        return self.pace.remaining_s(self.total_steps - self.step) if self.total_steps else None

    @cached_property
    def incidents(self) -> tuple[Incident, ...]:
        """The incidents of the run, in the order of their first alarms."""
        return incidents_of(
            IncidentRecords(
                anomalies=self.anomalies,
                commands=self.interventions,
                branches=self.branches,
                rollbacks=self.rollbacks,
                probations=self.probations,
                decisions=self.decisions,
                step=self.step,
            )
        )

    @cached_property
    def current_incident(self) -> Incident | None:
        """The incident that requires an action most urgently; None if none does."""
        return current_of(self.incidents)

    @property
    def good_checkpoints(self) -> tuple[CheckpointView, ...]:
        """The good checkpoints, newest first; these are the recommended rollback targets."""
        return tuple(c for c in reversed(self.checkpoints) if c.good)
