"""Which checkpoints wait to be measured, by the records of the journal."""

from __future__ import annotations

from collections.abc import Callable, Collection

from ...protocol.benchmarks.result import BenchmarkFinished, BenchmarkResult
from ...protocol.events import CheckpointSaved, Record


class WaitingCheckpoints:
    """The checkpoints that are due and have no results yet, oldest first."""

    def __init__(
        self,
        interval: int,
        tasks: Collection[str],
        number_of: Callable[[str], int | None],
        counts: Callable[[BenchmarkResult], bool] = lambda result: True,
    ) -> None:
        """Start without checkpoints.

        Args:
            interval: number of checkpoints from one that is measured to the next.
            tasks: the tasks and groups of which a checkpoint gets results.
            number_of: returns the position of a checkpoint among those of the run; None if it was
                removed.
            counts: whether a result is one of the configuration. A user may have measured the same
                task in another way.
        """
        self._interval, self._tasks, self._number_of = interval, frozenset(tasks), number_of
        self._counts = counts
        self._due: dict[str, None] = {}
        self._results: dict[str, set[str]] = {}
        self._failed: set[str] = set()
        self.knows_base = False
        """Whether a result with the base model is in the journal."""

    def add(self, record: Record) -> None:
        """Take in the next record of the journal."""
        match record.event:
            case CheckpointSaved(name=name, mean_of=[]):
                number = self._number_of(name)
                if number is not None and number % self._interval == 0:
                    self._due[name] = None
            case BenchmarkFinished(result=result):
                if self._counts(result):
                    self._results.setdefault(result.checkpoint, set()).add(result.of or result.task)
                if result.error:
                    self._failed.add(result.checkpoint)
                bases = [score.base for score in result.scores.values()]
                self.knows_base = self.knows_base or any(base is not None for base in bases)
            case _:
                pass

    def close(self, name: str) -> None:
        """Measure a checkpoint no more, whatever became of it."""
        self._failed.add(name)

    @property
    def next(self) -> str | None:
        """The checkpoint to measure next; None if none waits."""
        return next((name for name in self._due if not self._is_done(name)), None)

    def _is_done(self, name: str) -> bool:
        return name in self._failed or self._tasks <= self._results.get(name, set())
