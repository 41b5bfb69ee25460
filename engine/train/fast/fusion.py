"""Fewer and larger kernels for the same arithmetic: adapted linears and root-mean-square norms.

A layer is replaced only where its replacement computes the same; everything else stays as it is.
A layer that is not in training mode is as it was.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from peft.tuners.lora import Linear as LoraLinear
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn
from torch.nn import functional as F

CLOSE = 1e-5
"""Largest difference, relative to the norm, between a norm and its replacement in fp32."""


def fuse(model: nn.Module) -> list[nn.Module]:
    """Replace what can be replaced, in place; returns those layers."""
    fused: list[nn.Module] = []
    module: Any
    for module in model.modules():
        if isinstance(module, LoraLayer) and _is_plain(module):
            _replace(module, _adapted)
            fused.append(module)
        elif _is_rms_norm(module):
            _replace(module, _normed)
            fused.append(module)
    return fused


def _replace(module: Any, function: Callable[[Any, Tensor], Tensor | None]) -> None:
    """Call `function` first; where it returns None the module's own forward counts."""
    original = module.forward

    def forward(x: Tensor, *args: Any, **kwargs: Any) -> Any:
        found = function(module, x) if module.training and not args and not kwargs else None
        return original(x, *args, **kwargs) if found is None else found

    module.forward = forward


def _is_plain(layer: Any) -> bool:
    """One adapter of two matrices on a linear without bias, quantized to 4 bit or not at all."""
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
    """`base(x) + scaling · B A dropout(x)`; None where formats are mixed or the adapter is off."""
    down, up = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    kind = x.device.type
    mixed = torch.is_autocast_enabled(kind)
    dtype = torch.get_autocast_dtype(kind) if mixed else x.dtype
    if layer.disable_adapters or layer.merged or not (mixed or down.dtype == dtype):
        return None
    dropout = layer.lora_dropout["default"]
    rate = dropout.p if isinstance(dropout, nn.Dropout) and dropout.training else 0.0
    function: Callable[..., Tensor] = _Adapted.apply
    return function(x, down, up, layer.get_base_layer(), layer.scaling["default"], rate, dtype)


class _Adapted(torch.autograd.Function):
    """The sums go into matrix products instead of passing over all outputs once more each."""

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
        return out.view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> tuple[Tensor | None, ...]:
        dropped, mask, inner, a, b = ctx.saved_tensors
        with torch.autocast(outputs[0].device.type, enabled=False):
            incoming = outputs[0].reshape(-1, outputs[0].shape[-1]).to(ctx.dtype)
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
    """The frozen linear of [n, in], in the dtype of that."""
    if _quant_state(base) is None:
        return F.linear(flat, base.weight.to(flat.dtype))
    product: Tensor = base(flat).to(flat.dtype)
    return product


def _matrix(base: Any, dtype: torch.dtype) -> Tensor:
    """The frozen matrix [out, in], dequantized for the moment."""
    state = _quant_state(base)
    if state is None:
        weight: Tensor = base.weight.to(dtype)
        return weight
    from bitsandbytes.functional import dequantize_4bit

    matrix: Tensor = dequantize_4bit(base.weight.data, state)
    return matrix.to(dtype)


def _is_rms_norm(module: Any) -> bool:
    """Whether it computes what torch's own does, found out by trying."""
    weight, eps = getattr(module, "weight", None), getattr(module, "variance_epsilon", None)
    if not type(module).__name__.endswith("RMSNorm") or weight is None or eps is None:
        return False
    x = torch.linspace(-2, 3, 2 * len(weight), device=weight.device).view(2, -1)
    with torch.no_grad():
        right = module(x).float()
        found = F.rms_norm(x, weight.shape, weight.float(), eps)
    return bool((found - right).norm() <= CLOSE * right.norm())


def _normed(module: Any, x: Tensor) -> Tensor | None:
    if x.dtype != module.weight.dtype:
        return None
    with torch.autocast(x.device.type, enabled=False):
        return F.rms_norm(x, module.weight.shape, module.weight, module.variance_epsilon)
