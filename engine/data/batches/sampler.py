"""Order of the records: shuffled epochs, mixes of sources, micro-batches of each rank.

The order is a pure function of the position, so after a rollback or a resume the next batch is
exact.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from .mixing import MixChange, MixChanges, Segment, changes_up_to, epoch_order, ranges_of, shares_of

_MOST_HELD = 4
"""Lists of changes whose segments, and cycles whose orders, are held in memory."""


@dataclass(frozen=True)
class Mix:
    """Concatenated records of several sources, and how many of each an epoch uses.

    If a source has fewer records than its share, they are repeated within an epoch. If it has more,
    all its records are used over several epochs before any is repeated.
    """

    counts: tuple[int, ...]
    """Number of records of each source."""
    shares: tuple[int, ...]
    """Number of records of each source in one epoch."""

    @classmethod
    def of(cls, counts: Sequence[int], weights: Sequence[float] | None) -> Mix:
        """Return a mix whose epochs have as many records as all sources have together.

        Without weights, an epoch uses every record once.
        """
        counts = tuple(counts)
        return cls(counts, shares_of(sum(counts), weights) if weights else counts)

    def order(self, seed: int, epoch: int) -> NDArray[np.int64]:
        """Return the record indices of an epoch, shape [sum of shares]."""
        return Segment.first(self.counts, self.shares).order(seed, epoch)


@dataclass(frozen=True)
class WholeSteps:
    """Makes the records of an optimizer step independent of the micro-batch."""

    lengths: Sequence[int] | None = None
    """Tokens of every record, by which the micro-batches of a step hold similar ones, the longest
    first, so that less is padded; None keeps them in their order."""


class BatchStream:
    """The endless order of micro-batches of one rank; each epoch is a new permutation.

    Rank r takes every `world_size`-th micro-batch of the permutation. Records that do not fill a
    micro-batch on every rank, or with `steps` all those of an optimizer step, are left out of that
    epoch.

    Raises:
        DataError: There are too few records for one micro-batch on every rank.
    """

    def __init__(
        self,
        count: int,
        batch: int,
        accumulate: int = 1,
        rank: int = 0,
        world_size: int = 1,
        seed: int = 0,
        mix: Mix | None = None,
        steps: WholeSteps | None = None,
    ) -> None:
        together = accumulate if steps else 1
        self.micro_batches_per_epoch = count // (batch * world_size * together) * together
        """Complete micro-batches of this rank per epoch."""
        if self.micro_batches_per_epoch == 0:
            raise DataError(
                f"{count} training records do not fill one micro-batch of {batch} on each of "
                f"{world_size} devices; add records, or lower train.batch or train.devices"
            )
        self.steps_per_epoch = self.micro_batches_per_epoch / accumulate
        self._in_step = batch * world_size * accumulate
        """Records of an optimizer step on all ranks."""
        sorts = steps is not None and steps.lengths is not None and accumulate > 1
        self._lengths = np.asarray(steps.lengths) if steps and sorts else None
        self._count = count
        self._batch = batch
        self._rank = rank
        self._world_size = world_size
        self._seed = seed
        self._mix = mix
        self._segments: dict[MixChanges, Segment] = {}
        self._orders: dict[tuple[Segment, int], NDArray[np.int64]] = {}

    @property
    def sources(self) -> list[range]:
        """The record indices of each source."""
        return ranges_of(self._mix.counts if self._mix else (self._count,))

    def indices(
        self,
        position: int,
        left_out: Set[int] = frozenset(),
        changes: MixChanges = (),
    ) -> list[int]:
        """Return the record indices of a micro-batch.

        A record that is left out is replaced where it stands by another one of its source: the
        first one that is kept, and if possible unused, from a start that seed and place give. So
        all other records keep their places.

        Args:
            position: Number of micro-batches of this rank since the start of the run.
            left_out: Indices of records to leave out; of every source at least one is not.
            changes: Changes of the weights of the mix; those after the position have no effect.
        """
        segment = self._segment(changes_up_to(changes, position))
        start = segment.start if segment else 0
        cycle, within = divmod(position - start, self.micro_batches_per_epoch)
        order = self._order(segment, cycle)
        places = self._places(order, within)
        chosen = [int(order[place]) for place in places]
        if left_out.isdisjoint(chosen):
            return chosen
        used = set(chosen) - left_out
        key = (start, cycle) if start else (cycle,)
        for number, (place, index) in enumerate(zip(places, chosen, strict=True)):
            if index in left_out:
                chosen[number] = self._substitute(index, (*key, place), left_out, used)
                used.add(chosen[number])
        return chosen

    def _places(self, order: NDArray[np.int64], within: int) -> list[int]:
        """Return the places in the order of an epoch that a micro-batch of this rank takes.

        Args:
            order: The record indices of the epoch.
            within: Number of micro-batches of this rank since its start.
        """
        first = (within * self._world_size + self._rank) * self._batch
        if self._lengths is None:
            return list(range(first, first + self._batch))
        begin = first - first % self._in_step
        lengths = self._lengths[order[begin : begin + self._in_step]]
        longest_first = begin + np.argsort(-lengths, kind="stable")
        at = first - begin
        return [int(place) for place in longest_first[at : at + self._batch]]

    def _substitute(
        self, index: int, place: tuple[int, ...], left_out: Set[int], used: Set[int]
    ) -> int:
        """Return the record for the place of one that is left out, if possible an unused one."""
        source = next(one for one in self.sources if index in one)
        first = int(np.random.PCG64([self._seed, *place]).random_raw()) % len(source)
        others = (source[(first + more) % len(source)] for more in range(len(source)))
        kept = (one for one in others if one not in left_out)
        nearest = next(kept)
        if nearest not in used:
            return nearest
        return next((one for one in kept if one not in used), nearest)

    def _order(self, segment: Segment | None, cycle: int) -> NDArray[np.int64]:
        if segment is None:
            return epoch_order(self._count, self._seed, cycle)
        found = self._orders.get((segment, cycle))
        if found is None:
            found = segment.order(self._seed, cycle)
            _hold(self._orders, (segment, cycle), found)
        return found

    def _segment(self, changes: MixChanges) -> Segment | None:
        """Return the segment that the last change begins; None for a single source."""
        if self._mix is None:
            return None
        found = self._segments.get(changes)
        if found is None:
            found = self._after(changes) if changes else self._first(self._mix)
            _hold(self._segments, changes, found)
        return found

    def _first(self, mix: Mix) -> Segment:
        return Segment.first(mix.counts, mix.shares)

    def _after(self, changes: MixChanges) -> Segment:
        """Return the segment that the last of one or more changes begins."""
        assert self._mix is not None
        *before, last = changes
        if last.position == 0:
            return self._first(Mix.of(self._mix.counts, last.weights))
        segment = self._segment(tuple(before))
        assert segment is not None
        return segment.next(self._seed, self._end(segment, last), last.position, last.weights)

    def _end(self, segment: Segment, change: MixChange) -> tuple[int, int]:
        """Return the cycle in which a segment ends, and the records of it that are used then."""
        cycle, within = divmod(change.position - segment.start, self.micro_batches_per_epoch)
        return cycle, within * self._world_size * self._batch

    def epoch(self, position: int) -> float:
        """Return the passes over the data after `position` micro-batches of this rank."""
        return position / self.micro_batches_per_epoch


def _hold(held: dict[Any, Any], key: object, value: object) -> None:
    """Keep a value by its key, in place of the oldest one if there are many."""
    while len(held) >= _MOST_HELD:
        del held[next(iter(held))]
    held[key] = value
