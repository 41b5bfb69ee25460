"""Adapted linears in few matrix products: single ones, and siblings that share their input.

A LoRA matrix is so narrow that its product takes the time of reading the activations. Siblings,
such as the projections of queries, keys and values, read their input once for all A matrices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from peft.tuners.lora import Linear as LoraLinear
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn
from torch.nn import functional as F

SIBLINGS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Names of linears that a layer calls with the same input."""


def is_plain(layer: Any) -> bool:
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
        and (isinstance(layer, LoraLinear) or quant_state_of(base) is not None)
    )


def quant_state_of(base: Any) -> Any:
    """Return the quantization of a linear in 4 bits; None for a plain one."""
    return getattr(base.weight, "quant_state", None)


def adapted(layer: Any, x: Tensor) -> Tensor | None:
    """Return `base(x) + scaling · B A dropout(x)`.

    None if the adapter is disabled or merged, or if its dtype is not that of x without autocast.
    """
    dtype = _dtype_of(layer, x)
    if dtype is None:
        return None
    linear = _Linear.of(layer)
    function: Callable[..., Tensor] = _Adapted.apply
    return _shaped(function(x, linear.down, linear.up, linear, dtype), x)


class Siblings:
    """Linears that share their input, each of which asks for its own output.

    The first one that is called computes the outputs of all; they are held until the others ask for
    them. With dropout each linear has its own mask, so that each is computed by itself. Siblings
    whose inputs turn out to differ are computed by themselves from then on.
    """

    def __init__(self, layers: Sequence[Any]) -> None:
        self._layers = list(layers)
        self._input: Tensor | None = None
        self._waiting: dict[int, Tensor] = {}
        self._apart = False

    def output_of(self, layer: Any, x: Tensor) -> Tensor | None:
        """Return the output of one of the linears; None where `adapted` returns None."""
        if id(layer) in self._waiting and self._input is not x:
            self._apart = True
        own = self._waiting.pop(id(layer), None) if self._input is x else None
        if own is None:
            self._forget()
            own = self._begin(layer, x)
        if not self._waiting:
            self._forget()
        return own

    def _begin(self, layer: Any, x: Tensor) -> Tensor | None:
        dtypes = [_dtype_of(one, x) for one in self._layers]
        linears = [_Linear.of(one) for one in self._layers]
        alone = self._apart or any(linear.rate for linear in linears)
        if alone or dtypes[0] is None or len(set(dtypes)) > 1:
            return adapted(layer, x)
        function: Callable[..., tuple[Tensor, ...]] = _Siblings.apply
        matrices = [matrix for linear in linears for matrix in (linear.down, linear.up)]
        outputs = function(x, linears, dtypes[0], *matrices)
        for one, output in zip(self._layers, outputs, strict=True):
            self._waiting[id(one)] = _shaped(output, x)
        self._input = x
        return self._waiting.pop(id(layer))

    def _forget(self) -> None:
        self._input = None
        self._waiting = {}


def siblings_in(model: nn.Module) -> dict[int, Siblings]:
    """Return the siblings of a model by the ids of their members, which are plain."""
    found: dict[int, Siblings] = {}
    for module in model.modules():
        for names in SIBLINGS:
            named = [getattr(module, name, None) for name in names]
            layers = [one for one in named if isinstance(one, LoraLayer) and is_plain(one)]
            if len(layers) > 1:
                together = Siblings(layers)
                found |= {id(layer): together for layer in layers}
    return found


@dataclass(frozen=True)
class _Linear:
    """A frozen linear and its adapter, as they are at one call."""

    base: Any
    down: Tensor
    up: Tensor
    scaling: float
    rate: float
    """Rate of the dropout before the adapter; 0 is off."""

    @classmethod
    def of(cls, layer: Any) -> _Linear:
        dropout = layer.lora_dropout["default"]
        rate = dropout.p if isinstance(dropout, nn.Dropout) and dropout.training else 0.0
        down, up = layer.lora_A["default"].weight, layer.lora_B["default"].weight
        return cls(layer.get_base_layer(), down, up, layer.scaling["default"], rate)


def _dtype_of(layer: Any, x: Tensor) -> torch.dtype | None:
    """Return the dtype of the products; None if the layer has to run its own code."""
    kind = x.device.type
    mixed = torch.is_autocast_enabled(kind)
    dtype = torch.get_autocast_dtype(kind) if mixed else x.dtype
    own = layer.lora_A["default"].weight.dtype
    if layer.disable_adapters or layer.merged or not (mixed or own == dtype):
        return None
    return dtype


def _shaped(out: Tensor, x: Tensor) -> Tensor:
    """Return a view, because a model cannot change the output of a custom function in place."""
    return out.view(*x.shape[:-1], -1)


class _Adapted(torch.autograd.Function):
    """An adapted linear whose sums are part of its matrix products.

    Each separate sum would read and write all outputs once more.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, down: Tensor, up: Tensor, linear: _Linear, dtype: torch.dtype
    ) -> Tensor:
        flat = x.reshape(-1, x.shape[-1]).to(dtype)
        a, b = down.to(dtype), up.to(dtype)
        rate = linear.rate
        dropped, mask = torch.native_dropout(flat, rate, True) if rate else (flat, None)
        with torch.autocast(x.device.type, enabled=False):
            inner = dropped @ a.T
            out = _product(linear.base, flat).addmm_(inner, b.T, alpha=linear.scaling)
        ctx.save_for_backward(dropped, mask, inner, a, b)
        ctx.base, ctx.scaling, ctx.rate, ctx.dtype = linear.base, linear.scaling, rate, dtype
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
        return of_x, of_down.to(ctx.dtypes[1]), of_up.to(ctx.dtypes[2]), None, None


class _Siblings(torch.autograd.Function):
    """Adapted linears of one input, without dropout; their A matrices are multiplied as one.

    The gradient of the input is summed in the products of the frozen matrices, and takes a single
    product of all A matrices.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, linears: list[_Linear], dtype: torch.dtype, *matrices: Tensor
    ) -> tuple[Tensor, ...]:
        flat = x.reshape(-1, x.shape[-1]).to(dtype)
        downs, ups = matrices[::2], [matrix.to(dtype) for matrix in matrices[1::2]]
        a = torch.cat([down.to(dtype) for down in downs])
        sizes = [len(down) for down in downs]
        with torch.autocast(x.device.type, enabled=False):
            inner = flat @ a.T
            outputs = tuple(
                _product(linear.base, flat).addmm_(part, b.T, alpha=linear.scaling)
                for linear, part, b in zip(
                    linears, torch.split(inner, sizes, dim=1), ups, strict=True
                )
            )
        ctx.save_for_backward(flat, inner, a, *ups)
        ctx.linears, ctx.dtype, ctx.sizes = linears, dtype, sizes
        ctx.dtypes, ctx.shape = (x.dtype, *(matrix.dtype for matrix in matrices)), x.shape
        return outputs

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> tuple[Any, ...]:
        flat, inner, a, *ups = ctx.saved_tensors
        of_inner, of_ups = torch.empty_like(inner), []
        parts = zip(
            torch.split(inner, ctx.sizes, dim=1),
            torch.split(of_inner, ctx.sizes, dim=1),
            strict=True,
        )
        with torch.autocast(outputs[0].device.type, enabled=False):
            incoming = [output.to(ctx.dtype) for output in outputs]
            for linear, one, b, (part, of_part) in zip(
                ctx.linears, incoming, ups, parts, strict=True
            ):
                torch.addmm(of_part, one, b, beta=0, alpha=linear.scaling, out=of_part)
                of_ups.append(torch.addmm(b, one.T, part, beta=0, alpha=linear.scaling))
            of_downs = torch.split(of_inner.T @ flat, ctx.sizes)
            of_x = _of_input(ctx, incoming, of_inner, a) if ctx.needs_input_grad[0] else None
        found = [matrix for pair in zip(of_downs, of_ups, strict=True) for matrix in pair]
        dtypes = ctx.dtypes[1:]
        return of_x, None, None, *(one.to(kind) for one, kind in zip(found, dtypes, strict=True))


def _of_input(ctx: Any, incoming: list[Tensor], of_inner: Tensor, a: Tensor) -> Tensor:
    """Return the gradient of the input that siblings share."""
    found = of_inner @ a
    for linear, one in zip(ctx.linears, incoming, strict=True):
        found.addmm_(one, _matrix(linear.base, ctx.dtype))
    shaped: Tensor = found.view(ctx.shape).to(ctx.dtypes[0])
    return shaped


def _product(base: Any, flat: Tensor) -> Tensor:
    """Return the output of the frozen linear for [n, in], in the dtype of its input."""
    if quant_state_of(base) is None:
        return F.linear(flat, base.weight.to(flat.dtype))
    product: Tensor = base(flat).to(flat.dtype)
    return product


def _matrix(base: Any, dtype: torch.dtype) -> Tensor:
    """Return the frozen matrix [out, in] in a dtype, dequantized into a temporary tensor."""
    state = quant_state_of(base)
    if state is None:
        weight: Tensor = base.weight.to(dtype)
        return weight
    from bitsandbytes.functional import dequantize_4bit

    matrix: Tensor = dequantize_4bit(base.weight.data, state)
    return matrix.to(dtype)
