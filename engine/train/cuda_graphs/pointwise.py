"""Pointwise kernels: the product of a gated MLP and rotary positions, compiled where possible.

Each has one forward and one backward function. The compiler makes a single kernel of each where
PyTorch would run several, and no intermediate result is kept for the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ...losses.fused_rows import RowKernels, gradient_in_place, row_losses
from ..patches import allow_shapes

MOST_SHAPES = 256
"""Most shapes per compiled function; further shapes would silently run uncompiled."""


def product(gate: Tensor, up: Tensor) -> Tensor:
    """Return SiLU(gate) · up for tensors of any shape."""
    return F.silu(gate) * up


def product_gradients(grad: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of `product` with respect to gate and up projection."""
    return torch.ops.aten.silu_backward(grad * up, gate), grad * F.silu(gate)


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return x with pairs of elements half a head apart rotated by the angles of their position.

    Args:
        x: [B, heads, T, D].
        cos: [B, 1, T, D].
        sin: [B, 1, T, D].
    """
    return x * cos + _quarter_turn(x) * sin


def rotated_gradient(grad: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return the gradient of `rotated` with respect to x."""
    return grad * cos - _quarter_turn(grad * sin)


def _quarter_turn(x: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


@dataclass(frozen=True)
class Kernels:
    """The pointwise functions of this module, plain or compiled."""

    product: Callable[[Tensor, Tensor], Tensor] = product
    product_gradients: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]] = product_gradients
    rotated: Callable[[Tensor, Tensor, Tensor], Tensor] = rotated
    rotated_gradient: Callable[[Tensor, Tensor, Tensor], Tensor] = rotated_gradient
    rows: RowKernels | None = None
    """Kernels for the loss of a chunk of logits; None where they are not compiled."""
    compiled: bool = False

    def multiply(self, gate: Tensor, up: Tensor) -> Tensor:
        """Return `product` with an autograd graph that keeps only the two factors."""
        apply: Callable[..., Tensor] = _Product.apply
        return apply(gate, up, self)

    def turn(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Return `rotated` with an autograd graph; the angles are not trained."""
        apply: Callable[..., Tensor] = _Rotated.apply
        return apply(x, cos, sin, self)


def kernels_for(device: torch.device) -> tuple[Kernels, str]:
    """Return compiled kernels on a CUDA device, or plain ones and the error of the compiler.

    The text is empty if there was no error. Other devices get plain kernels without an attempt.
    Compiling needs a C compiler. It is repeated for every shape and takes about a second, less if
    the result is cached.
    """
    if device.type != "cuda":
        return Kernels(), ""
    try:
        found = _compiled()
        x = torch.ones(1, 2, 16, 16, device=device)
        found.rotated(x, x, x)
    except Exception as error:  # noqa: BLE001 -- compilers and drivers fail in many ways
        return Kernels(), f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
    return found, ""


def _compiled() -> Kernels:
    allow_shapes(MOST_SHAPES)

    def fixed(function: Any) -> Any:
        return torch.compile(function, dynamic=False)

    rows = RowKernels(_for_any_count(row_losses), _for_any_count(gradient_in_place))
    return Kernels(
        fixed(product),
        fixed(product_gradients),
        fixed(rotated),
        fixed(rotated_gradient),
        rows,
        compiled=True,
    )


def _for_any_count(function: Any) -> Any:
    """Return a function of rows, compiled once for any number of rows of one width."""
    compiled: Any = torch.compile(function)

    def called(*arguments: Any) -> Any:
        for one in arguments:
            if isinstance(one, Tensor):
                torch._dynamo.maybe_mark_dynamic(one, 0)
        return compiled(*arguments)

    return called


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor, kernels: Kernels) -> Tensor:
        ctx.save_for_backward(gate, up)
        ctx.kernels = kernels
        return kernels.product(gate, up)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        return *ctx.kernels.product_gradients(grads[0], *ctx.saved_tensors), None


class _Rotated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, kernels: Kernels) -> Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.kernels = kernels
        return kernels.rotated(x, cos, sin)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        return ctx.kernels.rotated_gradient(grads[0], *ctx.saved_tensors), None, None, None
