"""The device lets an update pass by itself if it is beyond suspicion; any other waits for the host.

So the host need not know a step's loss before the device goes on. The fused optimizers take a
tensor, made for loss scaling, that says that the gradients are of no use: then they change neither
weights nor state. Here it says that the update is held back. The gradients stay where they are, and
the host decides when it has read the figures.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Adam

from ...core.guard import Limits

Gradients = list[tuple[Tensor, Tensor | None]]
"""Parameters, each with its gradient."""


class UpdateGate:
    """In front of one optimizer."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer: Any = optimizer

    def judge(self, loss: Tensor, grad_norm: Tensor, limits: Limits) -> Tensor:
        """Whether the update is held back, [] fp32, 1 or 0; the same on every rank.

        Args:
            loss: [], this rank's.
            grad_norm: [], before clipping.
            limits: of updates that may pass.
        """
        passes = (loss.float() <= limits.loss) & (grad_norm.float() <= limits.grad_norm)
        held = (~passes).float()
        if dist.is_initialized() and dist.get_world_size() > 1:
            dist.all_reduce(held, op=dist.ReduceOp.MAX)
        return held

    @contextmanager
    def closed_if(self, held: Tensor) -> Iterator[None]:
        """Steps of the optimizer within change nothing if `held` is 1."""
        self._optimizer.found_inf = held
        try:
            yield
        finally:
            del self._optimizer.found_inf

    def gradients(self) -> Gradients:
        """What the optimizer changes, each with its gradient."""
        groups = self._optimizer.param_groups
        return [(parameter, parameter.grad) for group in groups for parameter in group["params"]]

    def step(self) -> None:
        """The update after all."""
        self._optimizer.step()


def gate_of(optimizer: Any) -> UpdateGate | None:
    """The gate in front of what accelerate has prepared; None where it has to be the host's word.

    A loss scaler has a use of its own for the tensor.
    """
    inner = optimizer.optimizer
    fused = isinstance(inner, Adam) and all(group["fused"] for group in inner.param_groups)
    return UpdateGate(inner) if fused and optimizer.scaler is None else None
