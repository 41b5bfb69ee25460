"""What is known about a run: the frozen view that every screen is drawn from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

from fttui.engine.protocol.events import (
    AnomalyRaised,
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

from .branches import Branch
from .interventions import Interventions

PACE_WINDOW = 64
"""Intervals between steps that the pace is the median of."""


@dataclass(frozen=True)
class Pace:
    """The newest intervals between steps. Pauses and evaluations are outliers the median drops."""

    intervals_s: tuple[float, ...] = ()
    newest_s: float | None = None
    """Unix seconds of the newest step."""

    def extend(self, times: Sequence[float]) -> Pace:
        """The pace after more steps ended at these times."""
        if not times:
            return self
        recent = [*([] if self.newest_s is None else [self.newest_s]), *times][-PACE_WINDOW - 1 :]
        gaps = tuple(max(0.0, b - a) for a, b in pairwise(recent))
        return Pace((*self.intervals_s, *gaps)[-PACE_WINDOW:], times[-1])

    def restarted(self) -> Pace:
        """The same pace, with the next interval not counted: training did not run meanwhile."""
        return Pace(self.intervals_s, None)

    @property
    def step_s(self) -> float | None:
        """Median seconds per step."""
        return median(self.intervals_s) if self.intervals_s else None

    def remaining_s(self, steps_left: int) -> float | None:
        """Seconds until that many more steps are done."""
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


@dataclass(frozen=True)
class Anomaly:
    """An anomaly and its verdict."""

    step: int
    time: float
    timeline: int
    event: AnomalyRaised
    verdict: str = ""

    @property
    def open(self) -> bool:
        """No verdict yet."""
        return not self.verdict


@dataclass(frozen=True)
class Mark:
    """Something that happened, as a sign on the curves."""

    step: int
    time: float
    kind: str
    """anomaly, checkpoint, rollback, note, command or eval."""
    text: str


@dataclass(frozen=True)
class LogLine:
    """A line of the log."""

    time: float
    level: str
    text: str
    rank: int = 0


@dataclass(frozen=True)
class GeneratedSample:
    """A text the adapter wrote."""

    step: int
    time: float
    prompt: str
    text: str


@dataclass(frozen=True)
class RunView:
    """The run as far as its journal has been read."""

    started: RunStarted | None = None
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
    branches: tuple[Branch, ...] = (Branch(),)
    steps_seen: int = 0
    clipped_seen: int = 0
    tokens_seen: int = 0
    lr_scale: float = 1.0
    """In force for the next update."""
    clip: float | None = None
    evaluation: EvalFinished | None = None
    checkpoints: tuple[CheckpointView, ...] = ()
    anomalies: tuple[Anomaly, ...] = ()
    interventions: Interventions = field(default_factory=Interventions)
    marks: tuple[Mark, ...] = ()
    log: tuple[LogLine, ...] = ()
    samples: tuple[GeneratedSample, ...] = ()
    autopilot: AutopilotDecided | None = None
    """Its newest decision."""
    gradients: GradientsMeasured | None = None
    """The newest measurement by module, and its step."""
    gradients_at: int = 0
    profile: StepsProfiled | None = None
    """The newest one, and its step."""
    profiled_at: int = 0
    ended: RunEnded | None = None
    unknown: int = 0

    @property
    def branch(self) -> Branch:
        """The branch training is on."""
        return self.branches[-1]

    @property
    def total_steps(self) -> int:
        """Planned steps; 0 while unknown."""
        return self.started.total_steps if self.started else 0

    @property
    def eta_s(self) -> float | None:
        """Seconds to the planned end at the present pace."""
        return self.pace.remaining_s(self.total_steps - self.step) if self.total_steps else None

    @property
    def current_anomaly(self) -> Anomaly | None:
        """The newest anomaly without a verdict, alarms before watches."""
        waiting = [a for a in self.anomalies if a.open]
        alarms = [a for a in waiting if a.event.severity == "alarm"]
        found = alarms or waiting
        return found[-1] if found else None

    @property
    def good_checkpoints(self) -> tuple[CheckpointView, ...]:
        """Fit rollback targets, newest first."""
        return tuple(c for c in reversed(self.checkpoints) if c.good)
