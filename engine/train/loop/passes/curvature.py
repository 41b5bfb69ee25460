"""The estimate of Sophia-G: squares of a gradient whose targets the model itself has drawn.

Source: Liu et al. 2023, "Sophia: A Scalable Stochastic Second-order Optimizer for Language Model
Pre-training" (Gauss-Newton-Bartlett estimator).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...checkpoint.optimizer_state import bare
from .drawn_targets import uniform_of_rows
from .extra_pass import moved_weights, syncing


class CurvaturePass:
    """Gives the optimizer an estimate of the curvature in one step of `every`.

    The steps are counted from the start of the run, so that a rollback repeats the estimates. The
    pass draws its dropout masks from the generators of training, and its targets from the tokens of
    the rows, the seed and the number of the step.
    """

    def __init__(self, trainer: Any, *, every: int, seed: int) -> None:
        self._trainer = trainer
        self._every, self._seed = every, seed
        self._batches: list[Any] = []
        self._items: Any = None

    def begin(self, batches: list[Any], items: Any) -> None:
        """Keep the micro-batches; an estimate that no update has used is dropped."""
        self._batches, self._items = batches, items
        bare(self._trainer.optimizer).drop_estimate()

    def run(self, model: Any) -> None:
        """Compute the estimate if it is due; the gradient of the step stays as it is.

        If the estimate is not finite, that gradient becomes NaN, so that the guard refuses the
        update.
        """
        trainer, (batches, self._batches) = self._trainer, (self._batches, [])
        step = trainer.position.step
        if trainer.step_loop.dropped or trainer.no_items or step % self._every:
            return
        weights = moved_weights(bare(trainer.optimizer))
        gradients = [weight.grad for weight in weights]
        for weight in weights:
            weight.grad = None
        with trainer.step_loop.unmeasured(), trainer.step_loop.tally.time("compute"):
            for batch, context in syncing(trainer, model, batches):
                if not trainer.step_loop.may_continue():
                    break
                uniform = uniform_of_rows(batch["input_ids"], batch["labels"], self._seed, step)
                with context:
                    self._backward(model, batch, uniform)
        found = [weight.grad for weight in weights]
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.grad = gradient
        if not trainer.step_loop.dropped:
            self._hand_over(weights, found)

    def _backward(self, model: Any, batch: Any, uniform: Tensor) -> None:
        trainer = self._trainer
        inputs = trainer._prepare_inputs(batch)
        with trainer.compute_loss_context_manager():
            loss = trainer.sampled_loss(model, inputs, uniform, self._items)
        trainer.accelerator.backward(loss)

    @torch.no_grad()
    def _hand_over(self, weights: list[Tensor], found: list[Tensor | None]) -> None:
        scaler = self._trainer.scaler
        scale = 1.0 if scaler is None else float(scaler.get_scale())
        estimate = {w: g / scale for w, g in zip(weights, found, strict=True) if g is not None}
        bare(self._trainer.optimizer).take_estimate(estimate, self._items)
        for weight, gradient in estimate.items():
            assert weight.grad is not None, "the weights that are moved have a gradient"
            unusable = ~torch.isfinite(gradient.float().norm())
            weight.grad += torch.where(unusable, torch.nan, 0.0).to(weight.grad.dtype)

    def held(self) -> list[Tensor]:
        """Return tensors as large as the estimate."""
        groups = bare(self._trainer.optimizer).param_groups
        return [torch.zeros_like(weight) for group in groups for weight in group["params"]]
