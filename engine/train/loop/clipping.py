"""Clipping of gradients before an update: by their norm, by value, and by the norms of weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from ...config.schema import TrainConfig

LEAST_WEIGHT_NORM, LEAST_GRADIENT_NORM = 1e-3, 1e-6
"""Least norms of a weight and of its gradient in adaptive clipping; smaller ones count as these.

Source: Brock et al. 2021, "High-Performance Large-Scale Image Recognition Without Normalization".
"""


def clip_gradients(
    parameters: Iterable[nn.Parameter],
    recipe: TrainConfig,
    limit: float,
    clip_norm: Callable[[float], Tensor],
) -> Tensor:
    """Clip gradients as configured; return their norm before any clipping, [].

    The guard checks the returned norm, which shows values that are not finite.

    Args:
        parameters: trained parameters; those without a gradient are left out.
        recipe: says whether to clip by value and adaptively.
        limit: largest norm in force; infinite if clipping by the norm is off.
        clip_norm: removes the loss scale, clips to a norm, and returns the norm before that.
    """
    if not recipe.clip_value and not recipe.clip_adaptive:
        return clip_norm(limit)
    norm = clip_norm(math.inf)
    moved = [parameter for parameter in parameters if parameter.grad is not None]
    if recipe.clip_adaptive:
        clip_adaptively(moved, recipe.clip_adaptive)
    if recipe.clip_value:
        nn.utils.clip_grad_value_(moved, recipe.clip_value)
    if math.isfinite(limit):
        nn.utils.clip_grad_norm_(moved, limit)
    return norm


@torch.no_grad()
def clip_adaptively(parameters: Iterable[nn.Parameter], largest: float) -> None:
    """Scale down, row by row, gradients that are large beside their weights.

    Args:
        parameters: parameters with gradients.
        largest: largest ratio of the norm of a row's gradient to the norm of the row.
    """
    for parameter in parameters:
        gradient = parameter.grad
        assert gradient is not None, "parameters without a gradient are left out before"
        allowed = _row_norms(parameter).clamp(min=LEAST_WEIGHT_NORM) * largest
        found = _row_norms(gradient).clamp(min=LEAST_GRADIENT_NORM)
        gradient.mul_((allowed / found).clamp(max=1).to(gradient.dtype))


def _row_norms(tensor: Tensor) -> Tensor:
    """Return the norm of each row, [rows, 1, …]; of a vector or a number as a whole, []."""
    dims = tuple(range(1, tensor.ndim)) or None
    norms: Tensor = torch.linalg.vector_norm(tensor.float(), dim=dims, keepdim=dims is not None)
    return norms
