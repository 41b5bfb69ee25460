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
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn
from torch.nn import functional as F

from ..patches import replace_forward
from .adapted import Siblings, adapted, is_plain, siblings_in
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
    siblings = siblings_in(model)
    for module in model.modules():
        if function := _replacement(module, kernels, gated, siblings):
            fused.append(Fused(module, module.forward))
            _replace(module, function)
    return fused


def separate(fused: list[Fused]) -> None:
    """Give every replaced layer its original forward pass again."""
    for layer in fused:
        replace_forward(layer.module, layer.own_forward)


def _replacement(
    module: Any, kernels: Kernels, gated: dict[type, bool], siblings: dict[int, Siblings]
) -> _Replacement | None:
    if isinstance(module, LoraLayer):
        if group := siblings.get(id(module)):
            return group.output_of
        return adapted if is_plain(module) else None
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
