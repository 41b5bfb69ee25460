"""The usage of a run according to its journal, also if a process ended without a final record."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ..benchmarks.result import BenchmarkFinished
from ..events import AnyEvent, RunEnded, RunStarted, StepFinished, UsageMeasured
from .amounts import Budget, Price, Usage


@dataclass(frozen=True)
class UsageTally:
    """The newest measured usage of a run, and when it was measured."""

    measured: Usage = field(default_factory=Usage)
    measured_at: float | None = None
    """Unix seconds of that record, or of the start if no record after it has a usage."""
    incarnation: int = 0
    world_size: int = 1
    price: Price | None = None
    budget: Budget | None = None

    def after(self, event: AnyEvent, time: float, newest: float | None) -> UsageTally:
        """Return the tally after one more event of the journal.

        Args:
            event: the event.
            time: Unix seconds of its record.
            newest: Unix seconds of the record before it; None without one.
        """
        match event:
            case RunStarted():
                return self._started(event, time, newest)
            case StepFinished() | UsageMeasured() | RunEnded() if event.usage is not None:
                return replace(self, measured=event.usage, measured_at=time)
            case BenchmarkFinished(after_end=True):
                # No process of the run has worked since the record before.
                return replace(self, measured=self.up_to(newest), measured_at=None)
            case _:
                return self

    def _started(self, event: RunStarted, time: float, newest: float | None) -> UsageTally:
        """Return the tally after a start; what the process before did not measure is counted."""
        known = replace(self, price=event.price, budget=event.budget)
        if event.incarnation == self.incarnation:
            return known
        return replace(
            known,
            measured=self.up_to(newest),
            measured_at=time,
            incarnation=event.incarnation,
            world_size=event.world_size,
        )

    def up_to(self, time: float | None) -> Usage:
        """Return the usage up to a time in Unix seconds, while the newest process has run.

        The time since the last measurement counts; its energy is not known.
        """
        if time is None or self.measured_at is None or time <= self.measured_at:
            return self.measured
        seconds = time - self.measured_at
        device_s = seconds * self.world_size
        return self.measured.plus(Usage(seconds=seconds, device_s=device_s, unmetered_s=device_s))
