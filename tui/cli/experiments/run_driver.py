"""Drive a live run of this machine: send commands, and follow what it trains meanwhile."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from shlex import quote

from fttui.engine.errors import CommandRejected, EngineGone
from fttui.engine.protocol.commands import AnyCommand, Pause, RunSteps, describe_command
from fttui.engine.protocol.events import (
    CommandApplied,
    EvalFinished,
    Record,
    RolledBack,
    RunEnded,
    StateChanged,
    StepFinished,
)
from fttui.engine.protocol.settings import RunSettings
from fttui.engine.protocol.states import RunState
from fttui.engine.run.journal import FrameReader
from fttui.engine.run.processes.marks import read_engine
from fttui.engine.run.run_dir import RunDirectory

from ...connection.command_outcome import send_command
from ...connection.local import LocalSession
from ..headless import JournalRecords

_OUTCOME_S = 86_400.0
"""Seconds to wait for the outcome of a command; an evaluation may take hours."""
_POLL_S = 0.1
_JOURNALED_S = 10.0
"""Seconds within which the record of an outcome is in the journal that the hub has read it from."""
_LOOK_S = 1.0
"""Seconds between two looks at the engine's process."""


class RunLeft(EngineGone):
    """The run ended, or its engine was lost, while it was driven."""


@dataclass
class TrainedSteps:
    """What a run has trained between a command and the next pause."""

    losses: dict[int, float] = field(default_factory=dict)
    """The finite losses, by step."""
    not_finite: int = 0
    metrics: dict[int, dict[str, float]] = field(default_factory=dict)
    """The metrics of evaluations, by step."""
    step: int = 0
    """The last finished step."""
    halted: str = ""
    """Why the run was halted; empty if it was not."""
    rolled_back: str = ""
    """To which checkpoint and at which step the run was rolled back; empty if it was not."""
    by_others: list[str] = field(default_factory=list)
    """Commands of others that changed how the run trains, each with its issuer."""

    def add_step(self, step: int, loss: float | None) -> None:
        """Add a finished step with its loss; None if the script of the run reports none."""
        self.step = step
        if loss is not None and math.isfinite(loss):
            self.losses[step] = loss
        elif loss is not None:
            self.not_finite += 1


Progress = Callable[[TrainedSteps], None]


@dataclass(frozen=True)
class Applied:
    """The effect of a command."""

    step: int
    """The number of finished steps when it took effect."""
    timeline: int
    new: str
    """The changed value in words; of a checkpoint its name."""
    settings: RunSettings
    """The settings after it."""


class RunDriver:
    """Sends commands to a run and reads its journal; the run must have a live engine."""

    def __init__(self, run: RunDirectory, *, take: bool = False, offset: int | None = None) -> None:
        """Follow a run.

        Args:
            run: the run.
            take: whether each command takes control from a viewer that has it.
            offset: offset in the journal from which records are read; None for its end.
        """
        self._run = run
        self._take = take
        self._journal = JournalRecords(run.journal, _end(run) if offset is None else offset)
        self._records: deque[Record] = deque()
        self._own: set[str] = set()
        self._looked = 0.0
        self.evaluation: dict[str, float] = {}
        """The metrics of the newest evaluation."""

    def send(self, command: AnyCommand, reason: str) -> Applied:
        """Send a command and return its effect.

        Raises:
            CommandRejected: it had no effect; the text says why.
            RunLeft: the run ended, or its engine was lost.
        """
        session = LocalSession(self._run, one_shot=True)
        outcome = send_command(
            session, command, reason=reason, timeout_s=_OUTCOME_S, take=self._take
        )
        self._own.add(outcome.id)
        if outcome.status != "applied":
            self._require_engine()
            raise CommandRejected(f"{describe_command(command)}: {outcome.reason}")
        return self._applied(outcome.id, command)

    def _applied(self, command_id: str, command: AnyCommand) -> Applied:
        deadline = time.monotonic() + _JOURNALED_S
        while time.monotonic() < deadline:
            while (record := self._next()) is not None:
                event = record.event
                if isinstance(event, CommandApplied) and event.id == command_id:
                    return Applied(
                        record.step, record.timeline, event.new, event.settings or RunSettings()
                    )
            time.sleep(_POLL_S)
        raise RunLeft(
            f"the journal of {self._run.id} has no outcome of {describe_command(command)}"
        )

    def until_held(self, target: int, progress: Progress) -> TrainedSteps:
        """Follow training until it is paused at a step, or is halted or rolled back before it.

        A pause by somebody else before that step is waited out.

        Args:
            target: the step.
            progress: called after each step.

        Raises:
            RunLeft: the run ended, or its engine was lost.
        """
        found, held = TrainedSteps(), False
        while True:
            while (record := self._next()) is not None:
                if self._take_in(found, record, target):
                    return found
                if isinstance(record.event, StepFinished):
                    progress(found)
                state = record.event.state if isinstance(record.event, StateChanged) else None
                if held and state is RunState.RUNNING:
                    self._run_to(target)
                held = state is RunState.PAUSED if state else held
            self._look_at_engine()
            time.sleep(_POLL_S)

    def _run_to(self, target: int) -> None:
        """Let the run pause at a step again after somebody's pause has replaced that plan."""
        reason = f"a race trains to step {target}"
        paused = self.send(Pause(), reason)
        if paused.step < target:
            self.send(RunSteps(steps=target - paused.step), reason)

    def _take_in(self, found: TrainedSteps, record: Record, target: int) -> bool:
        """Add a record to the steps trained; return whether they have ended."""
        match record.event:
            case StepFinished(loss=loss):
                found.add_step(record.step, loss)
            case EvalFinished(metrics=metrics):
                found.metrics[record.step] = metrics
            case CommandApplied(id=ident, spec=spec) as applied if ident not in self._own:
                if spec is not None and spec.versioned:
                    found.by_others.append(f"{applied.command} by {applied.issuer}")
            case RolledBack(checkpoint=checkpoint):
                found.rolled_back = f"rolled back to {checkpoint} at step {found.step}"
            case StateChanged(state=RunState.HALTED, detail=detail):
                found.halted = f"halted after step {record.step}: {detail}"
            case RunEnded(state=state, error=error):
                raise RunLeft(_ended(self._run, state, error))
            case StateChanged(state=RunState.PAUSED) if record.step >= target:
                return True
            case _:
                pass
        return bool(found.halted or found.rolled_back)

    def _next(self) -> Record | None:
        if not self._records:
            self._records.extend(self._journal.new())
        record = self._records.popleft() if self._records else None
        if record is not None and isinstance(record.event, EvalFinished):
            self.evaluation = record.event.metrics
        return record

    def wait_until_ready(self) -> None:
        """Wait until an engine that was started paused has loaded its model and waits.

        Raises:
            RunLeft: the run ended, or its engine was lost.
        """
        while True:
            while (record := self._next()) is not None:
                match record.event:
                    case StateChanged(state=RunState.PAUSED):
                        return
                    case RunEnded(state=state, error=error):
                        raise RunLeft(_ended(self._run, state, error))
                    case _:
                        pass
            self._look_at_engine()
            time.sleep(_POLL_S)

    def _look_at_engine(self) -> None:
        if time.monotonic() - self._looked > _LOOK_S:
            self._looked = time.monotonic()
            self._require_engine()

    def _require_engine(self) -> None:
        engine = read_engine(self._run)
        if engine is not None and engine.alive:
            return
        while (record := self._next()) is not None:
            if isinstance(record.event, RunEnded):
                raise RunLeft(_ended(self._run, record.event.state, record.event.error))
        raise RunLeft(f"the engine of {self._run.id} was lost")


def _end(run: RunDirectory) -> int:
    """Return the offset of the end of a run's journal."""
    reader = FrameReader(run.journal)
    while reader.read():
        pass
    return reader.offset


def _ended(run: RunDirectory, state: RunState, error: str) -> str:
    why = f": {error}" if error else ""
    return f"the run {quote(run.id)} ended ({state.value}){why}"
