"""The training batches, by position: going back to a position gives the same batches again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..data.dataset import Example
from ..data.stream import BatchStream

Batch = dict[str, Any]


class Batches(Protocol):
    """The endless micro-batches of this rank."""

    def take(self, position: int) -> list[Example]:
        """The examples of one; the same for the same position."""
        ...

    def epoch(self, position: int) -> float:
        """Passes over the data at a position."""
        ...


@dataclass(frozen=True)
class HeldBatches:
    """Micro-batches out of examples that are all in memory."""

    examples: Sequence[Example]
    stream: BatchStream

    def take(self, position: int) -> list[Example]:
        """The examples of the micro-batch at a position."""
        return [self.examples[index] for index in self.stream.indices(position)]

    def epoch(self, position: int) -> float:
        """Passes over the data at a position."""
        return self.stream.epoch(position)


@dataclass
class BatchSource:
    """An endless source of micro-batches of this rank.

    `position` counts micro-batches since the start of the run; it is part of the training state.
    """

    batches: Batches
    collate: Callable[[Sequence[Example]], Batch]
    position: int = 0
    current: list[Example] = field(default_factory=list)
    """Examples of the step being trained."""
    previous: list[Example] = field(default_factory=list)
    """Examples of the step before it."""

    def fetch(self, micro_batches: int) -> list[Batch]:
        """The next micro-batches; moves the position."""
        self.previous, self.current = self.current, []
        return [self._one() for _ in range(micro_batches)]

    def _one(self) -> Batch:
        chosen = self.batches.take(self.position)
        self.position += 1
        self.current += chosen
        batch = self.collate(chosen)
        batch.pop("ids", None)
        return batch

    @property
    def epoch(self) -> float:
        """Epochs consumed."""
        return self.batches.epoch(self.position)

    def __iter__(self) -> Iterator[Batch]:
        """The shape the HF loop wants of a loader; it is fed by `fetch`."""
        while True:
            yield from self.fetch(1)
