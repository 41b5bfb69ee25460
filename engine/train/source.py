"""The training batches, by position: going back to a position gives the same batches again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..data.dataset import Example
from ..data.stream import BatchStream

Batch = dict[str, Any]


@dataclass
class BatchSource:
    """An endless source of micro-batches of this rank.

    `position` counts micro-batches since the start of the run; it is part of the training state.
    """

    examples: Sequence[Example]
    stream: BatchStream
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
        chosen = [self.examples[index] for index in self.stream.indices(self.position)]
        self.position += 1
        self.current += chosen
        batch = self.collate(chosen)
        batch.pop("ids", None)
        return batch

    @property
    def epoch(self) -> float:
        """Epochs consumed."""
        return self.stream.epoch(self.position)

    def __iter__(self) -> Iterator[Batch]:
        """The shape the HF loop wants of a loader; it is fed by `fetch`."""
        while True:
            yield from self.fetch(1)
