"""RMS norms that keep their input for the backward pass instead of an fp32 copy of it.

A norm computes in fp32. As plain tensor code it keeps the fp32 copy for the backward pass, which is
twice the size of the input, although the input is alive anyway. Here the copy is recomputed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

_ROWS = 4
"""Rows on which a norm is compared before it is replaced."""


def slim_norms(model: nn.Module) -> int:
    """Let a model's RMS norms keep no fp32 copy of their input; return how many were changed.

    Their weights must be frozen, because they get no gradient from the forward pass that is put in
    place. A norm is changed only if that gives bitwise equal results on a small input.
    """
    changed = 0
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm") and _is_usual(module):
            module.forward = _Slim(module)
            changed += 1
    return changed


class _Slim:
    def __init__(self, norm: Any) -> None:
        self._weight: Tensor = norm.weight
        self._epsilon = float(norm.variance_epsilon)

    def __call__(self, hidden: Tensor, *_: Any) -> Tensor:
        function: Callable[..., Tensor] = _RmsNorm.apply
        return function(hidden, self._weight, self._epsilon)


def _is_usual(norm: Any) -> bool:
    if not hasattr(norm, "variance_epsilon") or not isinstance(norm.weight, nn.Parameter):
        return False
    weight = norm.weight
    if weight.dtype == torch.float32:
        return False  # fp32 needs no copy
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(_ROWS, len(weight), generator=generator).to(weight.device, weight.dtype)
    with torch.no_grad():
        return torch.equal(norm(hidden), _Slim(norm)(hidden))


class _RmsNorm(torch.autograd.Function):
    """`weight · x / sqrt(mean(x²) + ε)`, with the quotient in fp32, rounded before the product."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        wide = hidden.to(torch.float32)
        inverse = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + epsilon)
        ctx.save_for_backward(hidden, inverse, weight)
        return weight * (wide * inverse).to(hidden.dtype)

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> tuple[Tensor, None, None]:
        hidden, inverse, weight = ctx.saved_tensors
        normed = hidden.to(torch.float32).mul_(inverse)
        gradient = (outputs[0] * weight).to(torch.float32)
        along = (gradient * normed).mean(-1, keepdim=True)
        gradient = gradient.sub_(normed.mul_(along)).mul_(inverse)
        return gradient.to(hidden.dtype), None, None
