"""Fusion: replaces adapted linears, norms, gated MLPs and rotary positions by fewer kernels.

A layer is replaced only if the replacement computes the same result; all other layers are left
unchanged. Outside training mode a replaced layer runs its own forward.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from peft.tuners.lora import Linear as LoraLinear
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn
from torch.nn import functional as F

from ..patches import replace_forward
from .pointwise import Kernels

CLOSE = 1e-5
"""Largest relative difference in fp32 between the result of a layer and of its replacement."""
_Replacement = Callable[[Any, Tensor], Tensor | None]
_GATED = ("gate_proj", "up_proj", "down_proj", "act_fn")


@dataclass(frozen=True)
class Fused:
    """A layer with a replaced forward pass, and its original forward pass."""

    module: nn.Module
    own_forward: Callable[..., Any]


def fuse(model: nn.Module, kernels: Kernels) -> list[Fused]:
    """Replace every layer that has a replacement, in place, and return the replaced layers."""
    fused: list[Fused] = []
    gated: dict[type, bool] = {}
    for module in model.modules():
        if function := _replacement(module, kernels, gated):
            fused.append(Fused(module, module.forward))
            _replace(module, function)
    return fused


def separate(fused: list[Fused]) -> None:
    """Give every replaced layer its original forward pass again."""
    for layer in fused:
        replace_forward(layer.module, layer.own_forward)


def _replacement(module: Any, kernels: Kernels, gated: dict[type, bool]) -> _Replacement | None:
    if isinstance(module, LoraLayer):
        return _adapted if _is_plain(module) else None
    if _is_rms_norm(module):
        return _normed
    if not all(hasattr(module, name) for name in _GATED):
        return None
    if type(module) not in gated:
        gated[type(module)] = _is_gated(module)
    return partial(_product_of, kernels) if gated[type(module)] else None


def _replace(module: Any, function: _Replacement) -> None:
    """Make a module call `function` in its forward pass.

    It calls its own forward if `function` returns None, outside training mode, and if there are
    arguments beside the first.
    """
    original = module.forward

    def forward(x: Tensor, *args: Any, **kwargs: Any) -> Any:
        found = function(module, x) if module.training and not args and not kwargs else None
        return original(x, *args, **kwargs) if found is None else found

    replace_forward(module, forward)


def _is_plain(layer: Any) -> bool:
    """Return whether a layer is a frozen linear without bias, 4-bit or plain, with one adapter."""
    base: Any = layer.get_base_layer()
    return (
        set(layer.lora_A) == {"default"}
        and "default" not in layer.lora_variant
        and layer.lora_B["default"].bias is None
        and isinstance(base, nn.Linear)
        and getattr(base, "bias", None) is None
        and not base.weight.requires_grad
        and not getattr(layer, "fan_in_fan_out", False)
        and (isinstance(layer, LoraLinear) or _quant_state(base) is not None)
    )


def _quant_state(base: Any) -> Any:
    return getattr(base.weight, "quant_state", None)


def _adapted(layer: Any, x: Tensor) -> Tensor | None:
    """Return `base(x) + scaling · B A dropout(x)`.

    None if the adapter is disabled or merged, or if its dtype is not that of x without autocast.
    """
    down, up = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    kind = x.device.type
    mixed = torch.is_autocast_enabled(kind)
    dtype = torch.get_autocast_dtype(kind) if mixed else x.dtype
    if layer.disable_adapters or layer.merged or not (mixed or down.dtype == dtype):
        return None
    dropout = layer.lora_dropout["default"]
    rate = dropout.p if isinstance(dropout, nn.Dropout) and dropout.training else 0.0
    function: Callable[..., Tensor] = _Adapted.apply
    out = function(x, down, up, layer.get_base_layer(), layer.scaling["default"], rate, dtype)
    # A view that the function itself returned could not be changed in place by the model.
    return out.view(*x.shape[:-1], -1)


class _Adapted(torch.autograd.Function):
    """An adapted linear whose sums are part of its matrix products.

    Each separate sum would read and write all outputs once more.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        down: Tensor,
        up: Tensor,
        base: Any,
        scaling: float,
        rate: float,
        dtype: torch.dtype,
    ) -> Tensor:
        flat = x.reshape(-1, x.shape[-1]).to(dtype)
        a, b = down.to(dtype), up.to(dtype)
        dropped, mask = torch.native_dropout(flat, rate, True) if rate else (flat, None)
        with torch.autocast(x.device.type, enabled=False):
            inner = dropped @ a.T
            out = _product(base, flat).addmm_(inner, b.T, alpha=scaling)
        ctx.save_for_backward(dropped, mask, inner, a, b)
        ctx.base, ctx.scaling, ctx.rate, ctx.dtype = base, scaling, rate, dtype
        ctx.dtypes = x.dtype, down.dtype, up.dtype
        ctx.shape = x.shape
        return out

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> tuple[Tensor | None, ...]:
        dropped, mask, inner, a, b = ctx.saved_tensors
        with torch.autocast(outputs[0].device.type, enabled=False):
            incoming = outputs[0].to(ctx.dtype)
            of_inner = torch.addmm(inner, incoming, b, beta=0, alpha=ctx.scaling)
            of_up = torch.addmm(b, incoming.T, inner, beta=0, alpha=ctx.scaling)
            of_down = of_inner.T @ dropped
            of_x = None
            if ctx.needs_input_grad[0]:
                of_x = incoming @ _matrix(ctx.base, ctx.dtype)
                if ctx.rate:
                    through = torch.ops.aten.native_dropout_backward
                    of_x += through(of_inner @ a, mask, 1.0 / (1.0 - ctx.rate))
                else:
                    of_x.addmm_(of_inner, a)
                of_x = of_x.view(ctx.shape).to(ctx.dtypes[0])
        return of_x, of_down.to(ctx.dtypes[1]), of_up.to(ctx.dtypes[2]), None, None, None, None


def _product(base: Any, flat: Tensor) -> Tensor:
    """Return the output of the frozen linear for [n, in], in the dtype of its input."""
    if _quant_state(base) is None:
        return F.linear(flat, base.weight.to(flat.dtype))
    product: Tensor = base(flat).to(flat.dtype)
    return product


def _matrix(base: Any, dtype: torch.dtype) -> Tensor:
    """Return the frozen matrix [out, in] in a dtype, dequantized into a temporary tensor."""
    state = _quant_state(base)
    if state is None:
        weight: Tensor = base.weight.to(dtype)
        return weight
    from bitsandbytes.functional import dequantize_4bit

    matrix: Tensor = dequantize_4bit(base.weight.data, state)
    return matrix.to(dtype)


def _is_rms_norm(module: Any) -> bool:
    """Return whether a module is named an RMSNorm and equals torch's on a trial input."""
    weight, eps = getattr(module, "weight", None), getattr(module, "variance_epsilon", None)
    if not type(module).__name__.endswith("RMSNorm") or weight is None or eps is None:
        return False
    x = torch.linspace(-2, 3, 2 * len(weight), device=weight.device).view(2, -1)
    with torch.no_grad():
        right = module(x).float()
        found = F.rms_norm(x, weight.shape, weight.float(), eps)
    return bool((found - right).norm() <= CLOSE * right.norm())


def _is_gated(mlp: Any) -> bool:
    """Return whether an MLP equals `down(SiLU(gate(x)) · up(x))` on a trial input."""
    weight = mlp.gate_proj.weight
    dtype = weight.dtype if weight.is_floating_point() else torch.float32
    x = torch.linspace(-2, 3, 2 * mlp.gate_proj.in_features, device=weight.device, dtype=dtype)
    was_training = mlp.training
    mlp.eval()
    try:
        with torch.no_grad():
            right = mlp(x.view(2, -1)).float()
            found = _product_of(Kernels(), mlp, x.view(2, -1)).float()
    finally:
        mlp.train(was_training)
    return bool((found - right).norm() <= CLOSE * right.norm())


def _product_of(kernels: Kernels, mlp: Any, x: Tensor) -> Tensor:
    out: Tensor = mlp.down_proj(kernels.multiply(mlp.gate_proj(x), mlp.up_proj(x)))
    return out


@contextmanager
def rotary(model: nn.Module, kernels: Kernels) -> Iterator[None]:
    """Replace the rotary embedding by one kernel each for queries and keys within the block.

    It is not replaced if the function of the model computes something else, or if it rotates only a
    part of each head.
    """
    code = vars(sys.modules[type(model).__module__])
    usual = code.get("apply_rotary_pos_emb")
    if usual is None or not _is_rotary(usual):
        yield
        return

    def turned(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> Any:
        if cos.shape[-1] != q.shape[-1]:
            return usual(q, k, cos, sin, unsqueeze_dim=unsqueeze_dim)
        cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
        return kernels.turn(q, cos, sin), kernels.turn(k, cos, sin)

    code["apply_rotary_pos_emb"] = turned
    try:
        yield
    finally:
        code["apply_rotary_pos_emb"] = usual


@cache
def _is_rotary(function: Any) -> bool:
    """Return whether a function equals the rotation of `pointwise` on a trial input."""
    q, k = torch.linspace(-2, 3, 96).view(2, 1, 1, 6, 8)
    angles = torch.linspace(0, 3, 24).view(1, 6, 4).repeat(1, 1, 2)
    try:
        found = function(q, k, angles.cos(), angles.sin())
    except Exception:  # noqa: BLE001 -- the function takes other arguments
        return False
    cos, sin = angles.cos().unsqueeze(1), angles.sin().unsqueeze(1)
    right = [Kernels().rotated(x, cos, sin) for x in (q, k)]
    return all((a - b).norm() <= CLOSE * b.norm() for a, b in zip(found, right, strict=True))


def _normed(module: Any, x: Tensor) -> Tensor | None:
    """Return the RMS norm of x; None if its dtype differs from that of the weight."""
    if x.dtype != module.weight.dtype:
        return None
    with torch.autocast(x.device.type, enabled=False):
        return F.rms_norm(x, module.weight.shape, module.weight, module.variance_epsilon)
