"""Which records belong to which micro-batch: pure arithmetic on a position.

A position is all the state there is, so a rollback or a resume continues with the very next batch.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError


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

    def indices(self, position: int) -> list[int]:
        """Record numbers of a micro-batch.

        Args:
            position: micro-batches of this rank since the start of the run.
        """
        epoch, within = divmod(position, self.micro_batches_per_epoch)
        start = (within * self._world_size + self._rank) * self._batch
        order = epoch_order(self._count, self._seed, epoch)
        return [int(index) for index in order[start : start + self._batch]]

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
