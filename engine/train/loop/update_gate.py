"""Update gate: lets the device apply an update by itself while loss and norm are within limits.

The device then continues before the host has read the loss of a step. The fused optimizers accept a
tensor, made for loss scaling, that marks the gradients as unusable, in which case they change
neither weights nor state. Here this tensor holds an update back: the gradients stay in place, and
the host decides after it has read the figures.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Adam

from ...core.guard import NOTHING_PASSES, Limits
from ..patches import refuse_update_if

Gradients = list[tuple[Tensor, Tensor | None]]
"""Trained parameters, each with its gradient."""


class UpdateGate:
    """Lets the device apply the updates of one optimizer, or leave the decision to the host."""

    final = False
    """Whether an update that the device has refused is never applied."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer: Any = optimizer

    def decides(self, limits: Limits) -> bool:
        """Whether the device decides on an update; the limits are those of `judge`."""
        return True

    def judge(self, loss: Tensor, grad_norm: Tensor, limits: Limits) -> Tensor:
        """Return 1 if the update is held back and 0 if not, [] fp32, the same on every rank.

        Args:
            loss: loss of this rank, [].
            grad_norm: gradient norm before clipping, [].
            limits: largest loss and gradient norm of an update that may pass.
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


class FinalGate(UpdateGate):
    """Lets the device discard updates whose loss or norm is not finite.

    An update that is finite is always applied, so nothing is left to be made later, and the loop
    around it continues as without a gate. Where the gradients of an update are to be measured, the
    host decides, because it has to read the weights before and after. The gradients of a refused
    update are measured with its verdict, if they are kept until then.
    """

    final = True

    def __init__(self, optimizer: torch.optim.Optimizer, *, keeps_gradients: bool = True) -> None:
        """Build the gate.

        Args:
            optimizer: the optimizer whose updates the device applies.
            keeps_gradients: whether the gradients of a step stay in memory until its verdict.
        """
        super().__init__(optimizer)
        self._keeps_gradients = keeps_gradients

    def gradients(self) -> Gradients:
        """Return the parameters and gradients of an update, or nothing if they are not kept."""
        return super().gradients() if self._keeps_gradients else []

    def decides(self, limits: Limits) -> bool:
        """Whether the device decides on an update; the host does if no update is within limits."""
        return limits != NOTHING_PASSES

    def judge(self, loss: Tensor, grad_norm: Tensor, limits: Limits) -> Tensor:
        """Return 1 if loss or norm is not finite and 0 otherwise, [] fp32, the same on every rank.

        Ranks need no message: a loss that is not finite makes the norm of every rank NaN.
        """
        loss, norm = loss.float(), grad_norm.float().to(loss.device)
        # A number minus itself is 0 if it is finite, otherwise NaN, which differs even from NaN.
        return ((loss - loss) != (norm - norm)).float()


def gate_of(optimizer: Any) -> UpdateGate | None:
    """Return the gate for an optimizer prepared by accelerate, or None if the host has to decide.

    Only fused optimizers accept the tensor, and a loss scaler needs it for its own purpose.
    """
    inner = optimizer.optimizer
    return UpdateGate(inner) if takes_verdicts(inner) and optimizer.scaler is None else None


def takes_verdicts(optimizer: Any) -> bool:
    """Whether the device can refuse updates of an optimizer: those of a fused Adam."""
    return isinstance(optimizer, Adam) and all(group["fused"] for group in optimizer.param_groups)
