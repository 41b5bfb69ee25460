"""The endless training batches of a rank by position; equal positions give equal batches."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from ..tokens.examples import Example
from .leave_out import LeaveOut
from .mixing import MixChanges, MixSchedule, changes_before
from .sampler import BatchStream

Batch = dict[str, Any]
MadeBatch = tuple[list[Example], Batch]


class Batches(Protocol):
    """The endless micro-batches of this rank as examples."""

    def take(
        self, position: int, left_out: Set[str] = frozenset(), changes: MixChanges = ()
    ) -> list[Example]:
        """Return the examples of the micro-batch at a position, without the samples left out.

        Equal arguments always give the same examples.

        Args:
            position: Micro-batches of this rank since the start of the run.
            left_out: Ids of samples.
            changes: Changes of the weights of the sources; those after the position have no effect.

        Raises:
            DataError: A row that is streamed for it cannot be read.
        """
        ...

    def why_not_kept_out(self, ids: Collection[str]) -> str:
        """Return why the samples with these ids cannot all be left out; empty if they can."""
        ...

    def why_not_replaced(self, ids: Collection[str]) -> str:
        """Return why `take` cannot leave these samples out of repeated steps; empty if it can.

        Unlike a quarantine, this needs only the samples of these steps.
        """
        ...

    def unknown(self, ids: Collection[str]) -> list[str]:
        """Return the ids that no sample has."""
        ...

    def epoch(self, position: int) -> float:
        """Return the number of epochs at a micro-batch position, such as 1.25."""
        ...


class InMemoryBatches:
    """Micro-batches of examples that are all in memory."""

    def __init__(self, examples: Sequence[Example], stream: BatchStream) -> None:
        self._left_out = LeaveOut(examples, stream.sources)
        self._stream = stream

    def take(
        self, position: int, left_out: Set[str] = frozenset(), changes: MixChanges = ()
    ) -> list[Example]:
        """Return the examples of the micro-batch at a position, without the samples left out."""
        out = self._left_out.places(left_out)
        indices = self._stream.indices(position, out, changes)
        return [self._left_out.example(index, left_out) for index in indices]

    def why_not_kept_out(self, ids: Collection[str]) -> str:
        """Return why the samples with these ids cannot all be left out; empty if they can."""
        return self._left_out.why_not(ids)

    def why_not_replaced(self, ids: Collection[str]) -> str:
        """Return why these samples cannot be left out of repeated steps; empty if they can."""
        return self._left_out.why_not(ids)

    def unknown(self, ids: Collection[str]) -> list[str]:
        """Return the ids that no sample has."""
        return self._left_out.unknown(ids)

    def epoch(self, position: int) -> float:
        """Return the passes over the data at a position."""
        return self._stream.epoch(position)


@dataclass(frozen=True)
class SeenExamples:
    """The examples of a step and of the step before it."""

    current: Sequence[Example]
    previous: Sequence[Example]


class HeldPlace(NamedTuple):
    """A position in the data and the examples of the steps before it."""

    position: int
    current: list[Example]
    previous: list[Example]
    changes: MixChanges = ()


class _Choice(NamedTuple):
    """The settings by which the samples of a step are chosen, beside its position."""

    left_out: Set[str]
    changes: MixChanges


@dataclass
class BatchSource:
    """Endless source of collated micro-batches, whose position can be set.

    `position` counts micro-batches since the start of the run; it is part of the training state.
    """

    batches: Batches
    collate: Callable[[Sequence[Example]], Batch]
    position: int = 0
    left_out: Callable[[], Sequence[str]] = tuple
    """Returns the ids of the samples that are kept out now."""
    schedule: MixSchedule | None = None
    """The configured weights of several sources; None for a single one."""
    chosen_mix: Callable[[], Mapping[str, float]] = dict
    """Returns the weights of the sources by a command; empty for those of the schedule."""
    current: list[Example] = field(default_factory=list)
    """Examples of the current step."""
    previous: list[Example] = field(default_factory=list)
    """Examples of the previous step."""
    _changes: MixChanges = ()
    """Changes of the weights of the sources so far."""
    _replayed: tuple[Set[str], MixChanges] | None = None
    """The samples left out of steps that are repeated, and the changes of the weights up to them;
    None while no step is."""
    _ahead: tuple[int, _Choice, list[MadeBatch]] | None = None
    """Position of the first prefetched micro-batch, the settings by which the samples were chosen,
    and the micro-batches; None without any."""

    def fetch(self, micro_batches: int) -> list[Batch]:
        """Return the next micro-batches, advance the position, and note their examples as current.

        The examples that were current become the previous ones.

        Raises:
            DataError: A row that is streamed for it cannot be read.
        """
        choice = self._choice()
        made, self._ahead = self._made(micro_batches, choice), None
        if self._replayed is None:
            self._changes = choice.changes
        self.position += micro_batches
        self.previous, self.current = self.current, [e for chosen, _ in made for e in chosen]
        return [batch for _, batch in made]

    def prepare(self, micro_batches: int) -> None:
        """Prefetch the next micro-batches; errors are left for `fetch` to raise.

        `fetch` uses them if it is asked for as many, with the same position and samples left out.
        """
        with suppress(Exception):  # `fetch` meets the error again and raises it
            choice = self._choice()
            self._ahead = self.position, choice, self._make(micro_batches, choice)

    def _made(self, count: int, choice: _Choice) -> list[MadeBatch]:
        if self._ahead is not None and self._ahead[:2] == (self.position, choice):
            made = self._ahead[2]
            if len(made) == count:
                return made
        return self._make(count, choice)

    def _make(self, count: int, choice: _Choice) -> list[MadeBatch]:
        return [self._one(self.position + number, choice) for number in range(count)]

    def _one(self, position: int, choice: _Choice) -> MadeBatch:
        chosen = self.batches.take(position, *choice)
        batch = self.collate(chosen)
        batch.pop("ids", None)
        return chosen, batch

    def _choice(self) -> _Choice:
        """Return the samples to leave out of the next step, and the changes of the weights."""
        if self._replayed is not None:
            return _Choice(*self._replayed)
        changes = self.changes_after(self._changes, self.position, self.chosen_mix())
        return _Choice(frozenset(self.left_out()), changes)

    @property
    def mix_changes(self) -> MixChanges:
        """The changes of the weights of the sources by which the steps so far were made."""
        return changes_before(self._changes, self.position)

    def changes_after(
        self, changes: MixChanges, position: int, chosen: Mapping[str, float]
    ) -> MixChanges:
        """Return the changes of the weights when a step begins at a position.

        Args:
            changes: the changes so far; those at the position or later are dropped.
            position: micro-batches since the start of the run.
            chosen: the weights by a command; empty for those of the schedule.
        """
        return self.schedule.after(changes, position, chosen) if self.schedule else ()

    def rewind_to(self, position: int) -> None:
        """Go back to `position`, where a dropped step began, and forget the examples of that step.

        The examples of the step before it are the current ones then.
        """
        self.position = position
        self.current = self.previous

    def return_to(self, position: int, changes: MixChanges = ()) -> None:
        """Go to the position of a checkpoint; the examples of earlier steps are forgotten.

        Args:
            position: micro-batches since the start of the run.
            changes: the changes of the weights of the sources up to it.
        """
        self.position, self._changes = position, changes
        self.current, self.previous = [], []

    def skip(self, micro_batches: int) -> None:
        """Advance the position past the next micro-batches, without making them."""
        self.position += micro_batches

    def hold(self) -> HeldPlace:
        """Return the position and the examples of current and previous step, for `put_back`."""
        return HeldPlace(self.position, self.current, self.previous, self._changes)

    def replay_at(self, position: int, left_out: Collection[str], changes: MixChanges = ()) -> None:
        """Go to the position of a step that is repeated; `put_back` ends the repetition.

        Args:
            position: micro-batches since the start of the run.
            left_out: ids of the samples to leave out, instead of those that are kept out now.
            changes: changes of the weights of the sources, instead of those so far.
        """
        self.position, self._replayed = position, (frozenset(left_out), changes)

    def put_back(self, held: HeldPlace) -> None:
        """Return to where `hold` was called, and to the samples that are kept out now."""
        self.position, self.current, self.previous, self._changes = held
        self._replayed = None

    @property
    def seen(self) -> SeenExamples:
        """The examples of the current and of the previous step."""
        return SeenExamples(self.current, self.previous)

    @property
    def epoch(self) -> float:
        """Passes over the data so far."""
        return self.batches.epoch(self.position)

    def __iter__(self) -> Iterator[Batch]:
        """Yield single micro-batches without end, for the loop of transformers.

        Raises:
            DataError: A row that is streamed for one cannot be read.
        """
        while True:
            yield from self.fetch(1)
