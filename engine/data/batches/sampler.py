"""Order of the records: shuffled epochs, mixes of sources, micro-batches of each rank.

The order is a pure function of the position, so after a rollback or a resume the next batch is
exact.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence, Set
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError


def shares_of(total: int, weights: Sequence[float]) -> tuple[int, ...]:
    """Split a total by weights into whole numbers, by largest remainder.

    Each is at least 1 unless the total is smaller than the number of weights.
    """
    exact = [total * weight / sum(weights) for weight in weights]
    shares = [max(1, int(share)) for share in exact]
    by_remainder = sorted(range(len(exact)), key=lambda i: shares[i] - exact[i])
    for index in by_remainder[: max(0, total - sum(shares))]:
        shares[index] += 1
    while sum(shares) > total:
        shares[shares.index(max(shares))] -= 1
    return tuple(shares)


def ranges_of(counts: Sequence[int]) -> list[range]:
    """Return the indices of the records of each source; they stand one source after the other."""
    ends = itertools.accumulate(counts)
    return [range(end - count, end) for end, count in zip(ends, counts, strict=True)]


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
        chosen, start = [], 0
        for source, (count, share) in enumerate(zip(self.counts, self.shares, strict=True)):
            turns = np.arange(epoch * share, (epoch + 1) * share)
            for own in range(int(turns[0]) // count, int(turns[-1]) // count + 1):
                order = epoch_order(count, seed + 1 + source, own)
                chosen.append(start + order[turns[turns // count == own] % count])
            start += count
        everything = np.concatenate(chosen)
        return everything[epoch_order(len(everything), seed, epoch)]


class BatchStream:
    """The endless order of micro-batches of one rank; each epoch is a new permutation.

    Rank r takes every `world_size`-th micro-batch of the permutation. Records that do not fill a
    micro-batch on every rank are left out of that epoch.

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
    ) -> None:
        self.micro_batches_per_epoch = count // (batch * world_size)
        """Complete micro-batches of this rank per epoch."""
        if self.micro_batches_per_epoch == 0:
            raise DataError(
                f"{count} training records do not fill one micro-batch of {batch} on each of "
                f"{world_size} devices; add records, or lower train.batch or train.devices"
            )
        self.steps_per_epoch = self.micro_batches_per_epoch / accumulate
        self._count = count
        self._batch = batch
        self._rank = rank
        self._world_size = world_size
        self._seed = seed
        self._mix = mix

    @property
    def sources(self) -> list[range]:
        """The record indices of each source."""
        return ranges_of(self._mix.counts if self._mix else (self._count,))

    def indices(self, position: int, left_out: Set[int] = frozenset()) -> list[int]:
        """Return the record indices of a micro-batch.

        A record that is left out is replaced where it stands by another one of its source: the
        first one that is kept, and if possible unused, from a start that seed and place give. So
        all other records keep their places.

        Args:
            position: Number of micro-batches of this rank since the start of the run.
            left_out: Indices of records to leave out; of every source at least one is not.
        """
        epoch, within = divmod(position, self.micro_batches_per_epoch)
        start = (within * self._world_size + self._rank) * self._batch
        chosen = [int(index) for index in self._order(epoch)[start : start + self._batch]]
        if left_out.isdisjoint(chosen):
            return chosen
        used = set(chosen) - left_out
        for number, index in enumerate(chosen):
            if index in left_out:
                chosen[number] = self._substitute(index, (epoch, start + number), left_out, used)
                used.add(chosen[number])
        return chosen

    def _substitute(
        self, index: int, place: tuple[int, int], left_out: Set[int], used: Set[int]
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

    def _order(self, epoch: int) -> NDArray[np.int64]:
        if self._mix is None:
            return epoch_order(self._count, self._seed, epoch)
        return mixed_order(self._mix, self._seed, epoch)

    def epoch(self, position: int) -> float:
        """Return the passes over the data after `position` micro-batches of this rank."""
        return position / self.micro_batches_per_epoch


@lru_cache(maxsize=4)
def epoch_order(count: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """Return a permutation of `range(count)`, shape [count].

    It sorts raw generator output, which NumPy keeps stable across versions and platforms, unlike
    `Generator.permutation`.
    """
    keys = np.random.PCG64([seed, epoch]).random_raw(count)
    return np.argsort(keys, kind="stable").astype(np.int64)


@lru_cache(maxsize=4)
def mixed_order(mix: Mix, seed: int, epoch: int) -> NDArray[np.int64]:
    """Return the record indices of an epoch of a mix; the last ones asked for are kept."""
    return mix.order(seed, epoch)
