"""The moving average of the trained weights, evaluated and exported if `train.ema` is set."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.optim.swa_utils import get_ema_multi_avg_fn

Weights = Mapping[str, Tensor]


class WeightsEma:
    """Exponential moving average of the weights after each applied update, in fp32.

    Each update sets `average ← decay × average + (1 − decay) × weights`. The first updates use the
    smaller decay (1 + n) / (10 + n), so that in a short run the untrained weights do not dominate
    the average.
    """

    def __init__(self, weights: Weights, decay: float) -> None:
        self._weights = weights
        self._decay = decay
        self.updates = 0
        """Number of updates in the average."""
        self.average: dict[str, Tensor] = {}
        """The averaged weights by name."""
        self.restart()

    def restart(self) -> None:
        """Restart the average from the current weights."""
        self.updates = 0
        self.average = {name: _widened(w).clone() for name, w in self._weights.items()}

    @torch.no_grad()
    def update(self) -> None:
        """Add the current weights to the average; called after each applied update."""
        self.updates += 1
        decay = min(self._decay, (1 + self.updates) / (10 + self.updates))
        now = [_widened(weight) for weight in self._weights.values()]
        average = get_ema_multi_avg_fn(decay)  # type: ignore[no-untyped-call]  # torch leaves it so
        average(list(self.average.values()), now, self.updates)

    @torch.no_grad()
    def restore(self, average: Weights, updates: int) -> None:
        """Copy a saved average and its number of updates into this one, in place."""
        self.updates = updates
        for name, value in average.items():
            self.average[name].copy_(value)

    @contextmanager
    def in_place_of_weights(self) -> Iterator[None]:
        """Put the averaged weights into the model for the block, then restore its own weights."""
        own = {name: weight.detach().clone() for name, weight in self._weights.items()}
        self._put(self.average)
        try:
            yield
        finally:
            self._put(own)

    @torch.no_grad()
    def _put(self, values: Weights) -> None:
        for name, weight in self._weights.items():
            weight.copy_(values[name])


def _widened(weight: Tensor) -> Tensor:
    return weight.detach().float()
