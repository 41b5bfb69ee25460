"""Sharpness-aware minimization: the gradient of a step is taken at weights that are moved uphill.

Source: Foret et al. 2021, "Sharpness-Aware Minimization for Efficiently Improving Generalization";
Kwon et al. 2021, "ASAM: Adaptive Sharpness-Aware Minimization for Scale-Invariant Learning".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ....config.sections.train import SamConfig
from ...checkpoint.optimizer_state import bare
from ...checkpoint.rng import RngState, capture_rng, restore_rng
from .extra_pass import moved_weights, syncing

LEAST_NORM = 1e-12
"""What is added to the norm that the gradient is divided by."""


class SharpnessPass:
    """Replaces the gradient of a step by that at the moved weights.

    The second pass repeats the whole step, with the same micro-batches and random numbers. The
    metrics of the step are those of the first pass; clipping and guard see the second gradient.
    """

    def __init__(self, trainer: Any, settings: SamConfig) -> None:
        self._trainer = trainer
        self._settings = settings
        self._batches: list[Any] = []
        self._items: Any = None
        self._rng: RngState | None = None

    def begin(self, batches: list[Any], items: Any) -> None:
        """Keep the micro-batches and the states of the random generators."""
        self._batches, self._items = batches, items
        self._rng = capture_rng()

    def run(self, model: Any) -> None:
        """Compute the gradient at the moved weights, and restore the weights to the last bit."""
        trainer, (batches, self._batches) = self._trainer, (self._batches, [])
        if trainer.step_loop.dropped or self._rng is None:
            return
        trainer.forward.average_gradients()
        weights = moved_weights(bare(trainer.optimizer))
        with trainer.step_loop.unmeasured(), moved_uphill(weights, self._settings):
            model.zero_grad()
            restore_rng(self._rng)
            trainer.prepare_step(batches)
            for batch, context in syncing(trainer, model, batches):
                with context:
                    trainer.training_step(model, batch, self._items)
        trainer.average_own_gradients()

    def held(self) -> list[Tensor]:
        """Return a copy of the trained weights."""
        groups = bare(self._trainer.optimizer).param_groups
        return [weight.detach().clone() for group in groups for weight in group["params"]]


@contextmanager
def moved_uphill(weights: Sequence[Tensor], settings: SamConfig) -> Iterator[None]:
    """Within the block, move weights along their gradients by `rho`; then copy the old ones back.

    A gradient of which an element is not finite makes the weights NaN within the block, and so the
    gradient that is computed there.

    Args:
        weights: the weights, each with its gradient.
        settings: how far they are moved, and whether in proportion to their squares.
    """
    kept = [weight.detach().clone() for weight in weights]
    try:
        _move(weights, settings)
        yield
    finally:
        with torch.no_grad():
            for weight, value in zip(weights, kept, strict=True):
                weight.copy_(value)


@torch.no_grad()
def _move(weights: Sequence[Tensor], settings: SamConfig) -> None:
    if not weights:
        return
    adaptive = settings.adaptive
    home = weights[0].device
    norms = [_scaled(weight, 1 if adaptive else 0).norm().to(home) for weight in weights]
    scale = settings.rho / (torch.stack(norms).norm() + LEAST_NORM)
    for weight in weights:
        change = _scaled(weight, 2 if adaptive else 0) * scale.to(weight.device)
        weight.copy_(weight.float() + change)


def _scaled(weight: Tensor, power: int) -> Tensor:
    """Return the gradient of a weight in fp32, times a power of the size of each element."""
    assert weight.grad is not None, "weights without a gradient are left out before"
    gradient = weight.grad.float()
    return gradient * weight.float().abs() ** power if power else gradient
