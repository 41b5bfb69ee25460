"""Moving average of the adapter, which is evaluated and exported if `train.ema` is set."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.optim.swa_utils import get_ema_multi_avg_fn

Weights = Mapping[str, Tensor]


class AdapterEma:
    """`average ← decay × average + (1 − decay) × weights` after each applied update, in fp32.

    The first updates use the smaller decay (1 + n) / (10 + n), so that the average of a short run
    is not that of its untrained start.
    """

    def __init__(self, weights: Weights, decay: float) -> None:
        self._weights = weights
        self._decay = decay
        self.updates = 0
        """Updates taken in."""
        self.average: dict[str, Tensor] = {}
        """The averaged weights by name."""
        self.restart()

    def restart(self) -> None:
        """Begin with the weights as they are."""
        self.updates = 0
        self.average = {name: _widened(w).clone() for name, w in self._weights.items()}

    @torch.no_grad()
    def update(self) -> None:
        """Take the weights of the update just applied in."""
        self.updates += 1
        decay = min(self._decay, (1 + self.updates) / (10 + self.updates))
        now = [_widened(weight) for weight in self._weights.values()]
        average = get_ema_multi_avg_fn(decay)  # type: ignore[no-untyped-call]  # torch leaves it so
        average(list(self.average.values()), now, self.updates)

    @torch.no_grad()
    def restore(self, average: Weights, updates: int) -> None:
        """Take a saved average over, in place."""
        self.updates = updates
        for name, value in average.items():
            self.average[name].copy_(value)

    @contextmanager
    def in_place_of_weights(self) -> Iterator[None]:
        """The model has the averaged weights inside, and exactly its own again after."""
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
