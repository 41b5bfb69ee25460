"""Training data that are read while training: rows in an order that is known without them.

A row's place follows from the seed and its number alone. So a position is all the state there is,
as with data in memory: going back, or going on in another process, reads from there.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol, TypeVar

import numpy as np

from ..errors import DataError
from .examples import Example
from .formats import Record
from .sampler import shares_of

log = logging.getLogger(__name__)

BLOCKS_HELD = 2
"""A micro-batch may lie across two."""
CYCLE = 1000
"""Rows after which the shares of several sources come out as asked for."""
FRUITLESS = 10_000
"""Rows in a row without anything to learn, after which the data are taken to be wrong."""

Item = TypeVar("Item")


class Rows(Protocol):
    """An endless sequence of rows."""

    @property
    def size(self) -> int | None:
        """Rows of one pass, once known."""
        ...

    def row(self, number: int) -> Record:
        """The row with a number, from 0."""
        ...


class ShuffledRows:
    """The rows of one source, again and again, each block of them in an order of its own.

    Only blocks in use are held. Reading goes on where it was, or begins anew to get back.

    Args:
        source: for error messages.
        open_records: all rows from the one with a number on.
        block: rows shuffled among each other.
        seed: of the order.
    """

    def __init__(
        self, source: str, open_records: Callable[[int], Iterator[Record]], block: int, seed: int
    ) -> None:
        self.size: int | None = None
        self._source = source
        self._open = open_records
        self._block = block
        self._seed = seed
        self._held: OrderedDict[tuple[int, int], list[Record]] = OrderedDict()
        self._reading: Iterator[Record] = iter(())
        self._next = -1
        """Number of the row that is read next; -1 when nothing is open."""

    def row(self, number: int) -> Record:
        """The row with a number.

        Raises:
            DataError: there are no rows, or one is broken.
        """
        rows, inside = self._place(number)
        if inside >= len(rows):
            rows, inside = self._place(number)  # the end was met, so the size is known now
        if inside >= len(rows):
            raise DataError(f"{self._source}: it became shorter while it was read; start anew")
        return rows[inside]

    def _place(self, number: int) -> tuple[list[Record], int]:
        """The block of a row, and where in it the row is."""
        epoch, within = divmod(number, self.size) if self.size else (0, number)
        place, inside = divmod(within, self._block)
        return self._rows(epoch, place), inside

    def _rows(self, epoch: int, place: int) -> list[Record]:
        """A block in the order of an epoch."""
        found = self._held.get((epoch, place))
        if found is None:
            read = self._read(place * self._block)
            keys = np.random.PCG64([self._seed, epoch, place]).random_raw(len(read))
            found = [read[index] for index in np.argsort(keys, kind="stable")]
            self._held[epoch, place] = found
            while len(self._held) > BLOCKS_HELD:
                self._held.popitem(last=False)
        return found

    def _read(self, start: int) -> list[Record]:
        followed = self._next == start
        if not followed:
            self._reading, self._next = self._open(start), start
        self._next = -1  # what fails while it is read is no end: it has to be opened again
        rows = list(islice(self._reading, self._block))
        self._next = start + len(rows)
        if len(rows) < self._block:
            if self.size is None:
                # Opened past the end, a source says nothing about where the end was.
                known = followed or bool(rows) or start == 0
                self.size = self._next if known else sum(1 for _ in self._open(0))
            self._next = -1
        if self.size == 0:
            raise DataError(f"{self._source}: no records; check it, or choose another data.train")
        return rows


class InterleavedRows:
    """Several sources by turns, in shares that come out exactly after every `CYCLE` rows."""

    def __init__(self, sources: Sequence[Rows], weights: Sequence[float], seed: int) -> None:
        self.size: int | None = None
        self._sources = sources
        self._seed = seed
        self._shares = shares_of(CYCLE, weights)
        self._cycle = -1
        self._turns: list[tuple[int, int]] = []

    def row(self, number: int) -> Record:
        """The row with a number."""
        cycle, within = divmod(number, CYCLE)
        if cycle != self._cycle:
            self._cycle, self._turns = cycle, self._plan(cycle)
        source, turn = self._turns[within]
        return self._sources[source].row(cycle * self._shares[source] + turn)

    def _plan(self, cycle: int) -> list[tuple[int, int]]:
        """(source, its how manieth row) for each row of a cycle."""
        keys = np.random.PCG64([self._seed, cycle]).random_raw(CYCLE)
        turns = [0] * len(self._shares)
        sources = np.repeat(np.arange(len(self._shares)), self._shares)[
            np.argsort(keys, kind="stable")
        ]
        plan = []
        for source in sources.tolist():
            plan.append((source, turns[source]))
            turns[source] += 1
        return plan


@dataclass
class StreamedBatches:
    """The micro-batches of one rank out of endless rows.

    Micro-batch n of rank r holds the rows from (n × ranks + r) × batch on. A row that gives nothing
    to learn is left out of it; when all are, the first later row that does stands in.
    """

    rows: Rows
    tokenize: Callable[[list[Record]], list[Example]]
    batch: int
    rank: int = 0
    world_size: int = 1
    dropped: int = 0
    """Rows that gave nothing."""

    def take(self, position: int) -> list[Example]:
        """The examples of the micro-batch at a position.

        Raises:
            DataError: nothing usable comes any more, or a row is broken.
        """
        start = (position * self.world_size + self.rank) * self.batch
        chosen = [self.rows.row(number) for number in range(start, start + self.batch)]
        examples = self.tokenize(chosen)
        if len(examples) < len(chosen):
            self._tell(len(chosen) - len(examples), chosen[0])
        return examples or [self._substitute(start + self.batch)]

    def _substitute(self, start: int) -> Example:
        for number in range(start, start + FRUITLESS):
            if found := self.tokenize([self.rows.row(number)]):
                return found[0]
        raise DataError(
            f"{FRUITLESS:,} rows in a row have no token to learn (last: "
            f"{self.rows.row(start + FRUITLESS - 1).id}); raise data.max_length, or look at them"
        )

    def _tell(self, count: int, row: Record) -> None:
        """Say so at the first and at every tenfold number of them."""
        before, self.dropped = self.dropped, self.dropped + count
        if len(str(before)) < len(str(self.dropped)) or before == 0:
            log.warning(
                "%s records dropped so far: no token to learn was left (near %s)",
                f"{self.dropped:,}",
                row.id,
            )

    def epoch(self, position: int) -> float:
        """Passes over the data, 0 while their size is not known."""
        rows = position * self.world_size * self.batch
        return rows / self.rows.size if self.rows.size else 0.0
