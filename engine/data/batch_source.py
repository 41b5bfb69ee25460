"""The training batches, by position: going back to a position gives the same batches again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from .examples import Example
from .sampler import BatchStream

Batch = dict[str, Any]
MadeBatch = tuple[list[Example], Batch]


class Batches(Protocol):
    """The endless micro-batches of this rank."""

    def take(self, position: int) -> list[Example]:
        """The examples of one; the same for the same position."""
        ...

    def epoch(self, position: int) -> float:
        """Passes over the data at a position."""
        ...


@dataclass(frozen=True)
class InMemoryBatches:
    """Micro-batches out of examples that are all in memory."""

    examples: Sequence[Example]
    stream: BatchStream

    def take(self, position: int) -> list[Example]:
        """The examples of the micro-batch at a position."""
        return [self.examples[index] for index in self.stream.indices(position)]

    def epoch(self, position: int) -> float:
        """Passes over the data at a position."""
        return self.stream.epoch(position)


@dataclass(frozen=True)
class SeenExamples:
    """What a step was trained on, and the step before it."""

    current: list[Example]
    previous: list[Example]


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
    _ahead: tuple[int, list[MadeBatch]] | None = None
    """Micro-batches made beforehand, and the position of the first."""

    def fetch(self, micro_batches: int) -> list[Batch]:
        """The next micro-batches; moves the position."""
        made, self._ahead = self._made(micro_batches), None
        self.position += micro_batches
        self.previous, self.current = self.current, [e for chosen, _ in made for e in chosen]
        return [batch for _, batch in made]

    def prepare(self, micro_batches: int) -> None:
        """Make what `fetch` will ask for if nobody moves the position, while there is time."""
        with suppress(Exception):  # `fetch` meets it again, where it is heard of
            self._ahead = self.position, self._make(micro_batches)

    def _made(self, count: int) -> list[MadeBatch]:
        if self._ahead is not None and self._ahead[0] == self.position:
            _, made = self._ahead
            if len(made) == count:
                return made
        return self._make(count)

    def _make(self, count: int) -> list[MadeBatch]:
        return [self._one(self.position + number) for number in range(count)]

    def _one(self, position: int) -> MadeBatch:
        chosen = self.batches.take(position)
        batch = self.collate(chosen)
        batch.pop("ids", None)
        return chosen, batch

    def rewind_to(self, position: int) -> None:
        """Go back to the boundary of a step that was dropped."""
        self.position = position
        self.current = self.previous

    def return_to(self, position: int) -> None:
        """Go to the position of a checkpoint; the examples of earlier steps are forgotten."""
        self.position = position
        self.current, self.previous = [], []

    def skip(self, micro_batches: int) -> None:
        """Leave out the next micro-batches."""
        self.position += micro_batches

    @property
    def seen(self) -> SeenExamples:
        """The examples of the step being trained and of the one before it."""
        return SeenExamples(self.current, self.previous)

    @property
    def epoch(self) -> float:
        """Epochs consumed."""
        return self.batches.epoch(self.position)

    def __iter__(self) -> Iterator[Batch]:
        """The shape the HF loop wants of a loader; it is fed by `fetch`."""
        while True:
            yield from self.fetch(1)
