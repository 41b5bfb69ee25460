"""Update gate: the device applies an update by itself while loss and norm are within limits.

So the host need not know the loss of a step before the device goes on. The fused optimizers accept
a tensor, made for loss scaling, that says that the gradients are unusable: then they change neither
weights nor state. Here it holds an update back. The gradients stay in place, and the host decides
when it has read the figures.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Adam

from ...core.guard import Limits
from ..patches import refuse_update_if

Gradients = list[tuple[Tensor, Tensor | None]]
"""Trained parameters, each with its gradient."""


class UpdateGate:
    """The gate in front of one optimizer."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer: Any = optimizer

    def judge(self, loss: Tensor, grad_norm: Tensor, limits: Limits) -> Tensor:
        """Return 1 if the update is held back and 0 if not, [] fp32, the same on every rank.

        Args:
            loss: [], the loss of this rank.
            grad_norm: [], before clipping.
            limits: largest loss and norm of an update that may pass.
        """
        passes = (loss.float() <= limits.loss) & (grad_norm.float() <= limits.grad_norm)
        held = (~passes).float()
        if dist.is_initialized() and dist.get_world_size() > 1:
            dist.all_reduce(held, op=dist.ReduceOp.MAX)
        return held

    def closed_if(self, held: Tensor) -> AbstractContextManager[None]:
        """Return a context in which steps of the optimizer change nothing if `held` is 1."""
        return refuse_update_if(self._optimizer, held)

    def gradients(self) -> Gradients:
        """Return the parameters that the optimizer changes, each with its gradient."""
        groups = self._optimizer.param_groups
        return [(parameter, parameter.grad) for group in groups for parameter in group["params"]]

    def step(self) -> None:
        """Apply an update that the device held back."""
        self._optimizer.step()


def gate_of(optimizer: Any) -> UpdateGate | None:
    """Return the gate for an optimizer prepared by accelerate, or None if the host has to decide.

    Only fused optimizers have the tensor, and a loss scaler uses it for itself.
    """
    inner = optimizer.optimizer
    fused = isinstance(inner, Adam) and all(group["fused"] for group in inner.param_groups)
    return UpdateGate(inner) if fused and optimizer.scaler is None else None
