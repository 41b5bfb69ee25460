"""Streamed training data: shuffled and interleaved rows, and the micro-batches made of them.

The place of a row depends only on the seed and its number. So the position is the whole state, as
for data in memory: after a rollback or a resume, reading starts from the position.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence, Set
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol, TypeVar

import numpy as np

from ...errors import DataError
from ..findings import Findings
from ..records.reader import StreamRow
from ..tokens.examples import Example
from .mixing import MixChanges, changes_up_to, shares_of

BLOCKS_HELD = 2
"""Blocks held in memory; a micro-batch may span two."""
CYCLE = 1000
"""Rows within which the shares of several sources are exact."""
FRUITLESS = 10_000
"""Consecutive rows without any target after which the data are considered unusable."""

Item = TypeVar("Item")


WeightsFrom = tuple[int, tuple[float, ...]]
"""Number of a row, and the weights of the sources from it on."""


class Rows(Protocol):
    """An endless sequence of rows."""

    @property
    def size(self) -> int | None:
        """Number of rows of one pass; None while it is unknown."""
        ...

    def row(self, number: int) -> StreamRow:
        """Return the row with this number, counted from 0.

        Raises:
            DataError: A source has no rows, became shorter, or holds an invalid row.
        """
        ...

    def in_first_pass(self, number: int) -> bool:
        """Whether a row that has been read belongs to the first pass over its source."""
        ...

    def mixed(self, changes: Sequence[WeightsFrom]) -> Rows:
        """Return the rows in the order that they have with changes of the weights of sources."""
        ...


class ShuffledRows:
    """The rows of one source, repeated endlessly and shuffled block by block.

    Only blocks in use are held. Reading continues where it stopped, or restarts to go back.

    Args:
        source: Name of the source, for error messages.
        open_records: Opens the source and yields its rows from the given number on.
        block: Rows per block.
        seed: Seed of the order.
    """

    def __init__(
        self, source: str, open_records: Callable[[int], Iterator[StreamRow]], block: int, seed: int
    ) -> None:
        self.size: int | None = None
        self._source = source
        self._open = open_records
        self._block = block
        self._seed = seed
        self._held: OrderedDict[tuple[int, int], list[StreamRow]] = OrderedDict()
        self._reading: Iterator[StreamRow] = iter(())
        self._next = -1
        """Number of the row that is read next; -1 if the source has to be opened again."""

    def row(self, number: int) -> StreamRow:
        """Return the row with this number, counted from 0.

        Raises:
            DataError: The source has no rows, became shorter, or holds an invalid row.
        """
        rows, inside = self._place(number)
        if inside >= len(rows):
            rows, inside = self._place(number)  # the end was reached, so the size is known now
        if inside >= len(rows):
            raise DataError(
                f"{self._source}: the source became shorter while it was read; start the run again"
            )
        return rows[inside]

    def in_first_pass(self, number: int) -> bool:
        """Whether a row that has been read belongs to the first pass over its source."""
        return self.size is None or number < self.size

    def mixed(self, changes: Sequence[WeightsFrom]) -> ShuffledRows:
        """Return the same rows, because a single source has no weights."""
        return self

    def _place(self, number: int) -> tuple[list[StreamRow], int]:
        """Return the block that holds a row, and the index of the row in it.

        The index exceeds the block if the source ends before the row.

        Raises:
            DataError: The source cannot be read or has no rows.
        """
        epoch, within = divmod(number, self.size) if self.size else (0, number)
        place, inside = divmod(within, self._block)
        return self._rows(epoch, place), inside

    def _rows(self, epoch: int, place: int) -> list[StreamRow]:
        """Return the block with the number `place`, shuffled for an epoch; keep it for later.

        Raises:
            DataError: The source cannot be read or has no rows.
        """
        found = self._held.get((epoch, place))
        if found is None:
            read = self._read(place * self._block)
            keys = np.random.PCG64([self._seed, epoch, place]).random_raw(len(read))
            found = [read[index] for index in np.argsort(keys, kind="stable")]
            self._held[epoch, place] = found
            while len(self._held) > BLOCKS_HELD:
                self._held.popitem(last=False)
        return found

    def _read(self, start: int) -> list[StreamRow]:
        followed = self._next == start
        if not followed:
            self._reading, self._next = self._open(start), start
        self._next = -1  # after an error the source has to be opened again
        rows = list(islice(self._reading, self._block))
        self._next = start + len(rows)
        if len(rows) < self._block:
            if self.size is None:
                # A source that was opened past its end does not show where the end is.
                known = followed or bool(rows) or start == 0
                self.size = self._next if known else sum(1 for _ in self._open(0))
            self._next = -1
        if self.size == 0:
            raise DataError(
                f"{self._source}: no records; check the source, or choose another data.train"
            )
        return rows


@dataclass(frozen=True)
class _Stretch:
    """Rows of equal shares; each source continues where the stretch before has left it."""

    start: int
    """Number of its first row."""
    shares: tuple[int, ...]
    """Rows of each source in a cycle."""
    taken: tuple[int, ...]
    """Rows of each source before it."""

    def plan(self, seed: int, cycle: int) -> list[tuple[int, int]]:
        """Return (source, number of the row within that source) for each row of a cycle."""
        key = [seed, self.start, cycle] if self.start else [seed, cycle]
        keys = np.random.PCG64(key).random_raw(CYCLE)
        sources = np.repeat(np.arange(len(self.shares)), self.shares)[
            np.argsort(keys, kind="stable")
        ]
        turns = [n + cycle * share for n, share in zip(self.taken, self.shares, strict=True)]
        plan = []
        for source in sources.tolist():
            plan.append((source, turns[source]))
            turns[source] += 1
        return plan

    def next(self, seed: int, start: int, weights: Sequence[float]) -> _Stretch:
        """Return the stretch that begins at a row with other weights."""
        cycle, within = divmod(start - self.start, CYCLE)
        taken = [n + cycle * share for n, share in zip(self.taken, self.shares, strict=True)]
        for source, _ in self.plan(seed, cycle)[:within]:
            taken[source] += 1
        return _Stretch(start, shares_of(CYCLE, weights), tuple(taken))


class InterleavedRows:
    """Rows of several sources, interleaved in shares that are exact in every `CYCLE` rows.

    Args:
        sources: The rows of each source.
        weights: One weight per source.
        seed: Seed of the order.
        changes: Other weights from some rows on, in their order.
    """

    def __init__(
        self,
        sources: Sequence[Rows],
        weights: Sequence[float],
        seed: int,
        changes: Sequence[WeightsFrom] = (),
    ) -> None:
        self.size: int | None = None
        self._sources = sources
        self._weights = weights
        self._seed = seed
        self._changes = tuple(changes)
        self._stretches = [_Stretch(0, shares_of(CYCLE, weights), (0,) * len(sources))]
        for start, changed in self._changes:
            stretch = self._stretches[-1].next(seed, start, changed)
            self._stretches = [one for one in self._stretches if one.start < start] + [stretch]
        self._plans: dict[tuple[int, int], list[tuple[int, int]]] = {}
        self._last = self

    def mixed(self, changes: Sequence[WeightsFrom]) -> InterleavedRows:
        """Return the rows in the order that they have with these changes of the weights."""
        if self._last._changes != tuple(changes):
            self._last = InterleavedRows(self._sources, self._weights, self._seed, changes)
        return self._last

    def row(self, number: int) -> StreamRow:
        """Return the row with this number, counted from 0.

        Raises:
            DataError: The source of the row has no rows, became shorter, or holds an invalid row.
        """
        source, own = self._place(number)
        return self._sources[source].row(own)

    def in_first_pass(self, number: int) -> bool:
        """Whether a row that has been read belongs to the first pass over its source."""
        source, own = self._place(number)
        return self._sources[source].in_first_pass(own)

    def _place(self, number: int) -> tuple[int, int]:
        """Return (index of the source, number of the row within that source)."""
        stretch = next(one for one in reversed(self._stretches) if one.start <= number)
        cycle, within = divmod(number - stretch.start, CYCLE)
        plan = self._plans.get((stretch.start, cycle))
        if plan is None:
            plan = stretch.plan(self._seed, cycle)
            self._plans = {(stretch.start, cycle): plan}
        return plan[within]


@dataclass
class StreamedBatches:
    """The micro-batches of one rank, made of endless rows.

    Micro-batch n of rank r holds `batch` rows from number (n × ranks + r) × batch on. Rows without
    a target are left out; if none is left, the first later row with a target replaces them.
    """

    rows: Rows
    tokenize: Callable[[list[StreamRow], Findings], list[Example]]
    batch: int
    rank: int = 0
    world_size: int = 1
    findings: Findings = field(default_factory=Findings)
    """What was found in the rows read so far; rows that are read again are not counted again."""
    why_not_read_again: str = ""
    """Why the sources cannot be read again from an earlier row on; empty if they can."""
    _counted: int = 0
    """Position from which on findings are new."""

    def why_not_kept_out(self, ids: Collection[str]) -> str:
        """Return why samples of a stream cannot be left out by their ids; empty without ids."""
        if not ids:
            return ""
        return (
            "the data are streamed, so that an id cannot be looked up; take the records out of the "
            "source, or set data.streaming: false"
        )

    def why_not_replaced(self, ids: Collection[str]) -> str:
        """Return why these samples cannot be left out of repeated steps; empty if they can.

        The rows of the steps are read again, so the samples are recognized by their ids.
        """
        if self.why_not_read_again:
            return self.why_not_read_again
        out = frozenset(ids)
        if any(self.rows.row(number).id not in out for number in range(len(out) + self.batch)):
            return ""
        return "these are all rows of the stream, so that none is left to take their places"

    def unknown(self, ids: Collection[str]) -> list[str]:
        """Return no id: those of a stream cannot be looked up."""
        return []

    def take(
        self, position: int, left_out: Set[str] = frozenset(), changes: MixChanges = ()
    ) -> list[Example]:
        """Return the examples of the micro-batch at a position.

        For a sample left out, a row that comes much later takes its place, without being counted.
        What is found in rows of the first pass that were not read before is added to `findings`.

        Raises:
            DataError: `FRUITLESS` rows without a target follow, or a source has no rows or became
                shorter.
        """
        start = (position * self.world_size + self.rank) * self.batch
        numbers, each = range(start, start + self.batch), self.world_size * self.batch
        made = changes_up_to(changes, position)
        rows = self.rows.mixed([(one.position * each, one.weights) for one in made])
        if left_out:
            return self._without(rows, numbers, left_out)
        chosen = [rows.row(number) for number in numbers]
        new = [
            row for row, number in zip(chosen, numbers, strict=True) if rows.in_first_pass(number)
        ]
        found = Findings()
        examples = self.tokenize(chosen, found)
        if 0 < len(new) < len(chosen):  # a pass ends inside this micro-batch
            found = Findings()
            self.tokenize(new, found)
        examples = examples or [self._substitute(rows, start + self.batch, Findings())]
        if new and position >= self._counted:
            self._counted = position + 1
            self.findings.add(found)
        return examples

    def _without(self, rows: Rows, numbers: range, left_out: Set[str]) -> list[Example]:
        """Return the examples of rows; each one left out is replaced by a later row.

        Raises:
            DataError: as `take`.
        """
        later = numbers.start + self.world_size * self.batch
        chosen = []
        for number in numbers:
            row = rows.row(number)
            while row.id in left_out:
                row, later = rows.row(later), later + 1
            chosen.append(row)
        found = self.tokenize(chosen, Findings())
        return found or [self._substitute(rows, later, Findings(), left_out)]

    def _substitute(
        self, rows: Rows, start: int, findings: Findings, left_out: Set[str] = frozenset()
    ) -> Example:
        for number in range(start, start + FRUITLESS):
            row = rows.row(number)
            if row.id not in left_out and (found := self.tokenize([row], findings)):
                return found[0]
        last = rows.row(start + FRUITLESS - 1)
        raise DataError(
            f"{FRUITLESS:,} consecutive rows have no token to learn (last: "
            f"{last.place or last.id}); raise data.max_length, or check "
            "the rows"
        )

    def epoch(self, position: int) -> float:
        """Return the passes over the data at a position; 0 while their size is unknown.

        The size of several interleaved sources is never known.
        """
        rows = position * self.world_size * self.batch
        return rows / self.rows.size if self.rows.size else 0.0
