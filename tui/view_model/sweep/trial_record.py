"""What the journal of a trial says: its losses, its evaluations, and how it ended."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from statistics import fmean

from fttui.engine.protocol.commands import Stop
from fttui.engine.protocol.events import (
    CommandApplied,
    EvalFinished,
    Record,
    RolledBack,
    RunEnded,
    RunStarted,
    StateChanged,
    StepFinished,
)
from fttui.engine.protocol.states import RunState

from ..race.race_state import EVAL, LOSS, mean_of_second_half


@dataclass
class TrialRecord:
    """Collects the records of one trial, from the first one of its run on."""

    by: str
    """The metric that decides: `loss`, or `eval.` and the name of one of the evaluation."""
    every: int
    """Steps between two values of the metric `loss`."""
    losses: dict[int, float] = field(default_factory=dict)
    """The finite training losses, by step."""
    not_finite: int = 0
    values: dict[int, float] = field(default_factory=dict)
    """The finite values of the metric, by step."""
    step: int = 0
    halted: str = ""
    """Why the guard has halted the run; empty if it has not."""
    ended: RunEnded | None = None
    stopped_by: str = ""
    """Who has stopped the run; empty if nobody has."""
    seconds: float = 0.0
    """Time in which its engines worked; not that between an interruption and the next start."""
    _last_time: float | None = None
    """Unix seconds of the last record; None before the first one."""
    _incarnation: int = 0

    def take(self, record: Record) -> bool:
        """Add a record; return whether the metric has a new value at `step`."""
        self._measure(record)
        match record.event:
            case StepFinished() as step:
                return self._step(record.step, step.loss_or_nan)
            case EvalFinished(metrics=metrics) if self.by != LOSS:
                value = metrics.get(self.by.removeprefix(EVAL), math.nan)
                return self._value(record.step, value)
            case RolledBack(to_step=to_step):
                self._back(to_step)
            case StateChanged(state=RunState.HALTED, detail=detail):
                self.halted = f"halted after step {record.step}" + (f": {detail}" if detail else "")
            case StateChanged(state=RunState.RUNNING):
                self.halted = ""
            case RunStarted(start_step=start_step):  # resumed after an earlier end
                self._back(start_step)
                self.ended, self.stopped_by = None, ""
            case CommandApplied(typed=Stop(), issuer=issuer):
                self.stopped_by = issuer
            case RunEnded() as ended:
                self.ended = ended
            case _:
                pass
        return False

    def _measure(self, record: Record) -> None:
        event, before = record.event, self._last_time
        again = isinstance(event, RunStarted) and event.incarnation != self._incarnation
        if isinstance(event, RunStarted):
            self._incarnation = event.incarnation
        if before is not None and not again:
            self.seconds += record.time - before
        self._last_time = record.time

    def _step(self, step: int, loss: float) -> bool:
        self.step = step
        if math.isfinite(loss):
            self.losses[step] = loss
        else:
            self.not_finite += 1
        if self.by != LOSS or step % self.every:
            return False
        newest = [v for s, v in self.losses.items() if step - self.every < s <= step]
        return bool(newest) and self._value(step, fmean(newest))

    def _value(self, step: int, value: float) -> bool:
        if math.isfinite(value):
            self.values[step] = value
        return math.isfinite(value)

    def _back(self, to_step: int) -> None:
        """Forget what was trained after a step, because training continues from that step."""
        self.losses = {s: v for s, v in self.losses.items() if s <= to_step}
        self.values = {s: v for s, v in self.values.items() if s <= to_step}
        self.step, self.halted = to_step, ""

    @property
    def score(self) -> float | None:
        """The metric of the whole trial; None without a finite one.

        Of evaluations it is the value after the last step, of training losses the mean of the
        second half of the steps, as in a race.
        """
        if self.by == LOSS:
            return mean_of_second_half(self.losses)
        return self.values.get(self.step)
