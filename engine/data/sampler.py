"""Which records belong to which micro-batch: pure arithmetic on a position.

A position is all the state there is, so a rollback or a resume continues with the very next batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError


def shares_of(total: int, weights: Sequence[float]) -> tuple[int, ...]:
    """Split a total by weights into whole numbers, each at least 1 (largest remainders first)."""
    exact = [total * weight / sum(weights) for weight in weights]
    shares = [max(1, int(share)) for share in exact]
    by_remainder = sorted(range(len(exact)), key=lambda i: shares[i] - exact[i])
    for index in by_remainder[: max(0, total - sum(shares))]:
        shares[index] += 1
    while sum(shares) > total:
        shares[shares.index(max(shares))] -= 1
    return tuple(shares)


@dataclass(frozen=True)
class Mix:
    """Records of several sources, one source behind the other, and how many an epoch has of each.

    A source that an epoch has more of than there are comes several times; one that it has less of
    is used up over several epochs before a record of it comes again.
    """

    counts: tuple[int, ...]
    """Records of each source."""
    shares: tuple[int, ...]
    """Of those in one epoch, of each source."""

    @classmethod
    def of(cls, counts: Sequence[int], weights: Sequence[float] | None) -> Mix:
        """An epoch is as long as all records together; without weights it is exactly these."""
        counts = tuple(counts)
        return cls(counts, shares_of(sum(counts), weights) if weights else counts)

    def order(self, seed: int, epoch: int) -> NDArray[np.int64]:
        """Record numbers of an epoch, shape [sum of the shares]."""
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
    """The endless order of micro-batches of one rank; each epoch is a fresh permutation.

    Rank r takes every `world_size`-th micro-batch of the permutation; what does not fill a
    micro-batch on every rank is left out of that epoch.

    Raises:
        DataError: there are too few records for one micro-batch on every rank.
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
        """Of this rank, complete ones only."""
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

    def indices(self, position: int) -> list[int]:
        """Record numbers of a micro-batch.

        Args:
            position: micro-batches of this rank since the start of the run.
        """
        epoch, within = divmod(position, self.micro_batches_per_epoch)
        start = (within * self._world_size + self._rank) * self._batch
        order = self._order(epoch)
        return [int(index) for index in order[start : start + self._batch]]

    def _order(self, epoch: int) -> NDArray[np.int64]:
        if self._mix is None:
            return epoch_order(self._count, self._seed, epoch)
        return mixed_order(self._mix, self._seed, epoch)

    def epoch(self, position: int) -> float:
        """Passes over the data when `position` micro-batches of this rank are done."""
        return position / self.micro_batches_per_epoch


@lru_cache(maxsize=4)
def epoch_order(count: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """Permutation of `range(count)`, shape [count].

    Sorts raw generator output: NumPy keeps that stable across versions and platforms, which it
    does not promise for `Generator.permutation`.
    """
    keys = np.random.PCG64([seed, epoch]).random_raw(count)
    return np.argsort(keys, kind="stable").astype(np.int64)


@lru_cache(maxsize=4)
def mixed_order(mix: Mix, seed: int, epoch: int) -> NDArray[np.int64]:
    """The order of a mix, remembered."""
    return mix.order(seed, epoch)
