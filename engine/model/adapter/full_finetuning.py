"""Training of a model's own weights, all of them or a part, without an adapter."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import nn

from ...errors import ModelError
from ..hidden import backbone_of
from ..vision import beside_language_model, sees_images


def unfreeze(base: Any, layers: int | str | None, trained: torch.dtype, other: torch.dtype) -> None:
    """Unfreeze the weights to train, freeze the others, and convert the dtypes, in place.

    Args:
        base: The frozen base model.
        layers: Number of last decoder layers to train, a regular expression for full names of
            weights, or None for all weights.
        trained: The dtype of the trained weights.
        other: The dtype of the frozen ones.

    Raises:
        ModelError: `layers` fits no weight or exceeds the model, or a chosen weight is quantized.
    """
    named = dict(base.named_parameters())
    chosen = _chosen(base, set(named), layers)
    if not chosen:
        raise ModelError(
            f"train.layers: no weight of this model matches {layers!r}; one is "
            f"{max(named, key=len)}. Correct the pattern."
        )
    quantized = [name for name in chosen if not named[name].is_floating_point()]
    if quantized:
        raise ModelError(
            f"adapter: none trains the weights themselves, but {min(quantized)} is quantized. Use "
            f"the unquantized variant of the model, or train an adapter."
        )
    for name, weight in named.items():
        weight.requires_grad_(name in chosen)
        weight.data = weight.data.to(trained if name in chosen else other)


def full_finetuning_fact(base: nn.Module) -> str:
    """Return a line about the weights that are trained without an adapter."""
    sizes = [(weight.numel(), weight.requires_grad) for weight in base.parameters()]
    count = sum(size for size, trained in sizes if trained)
    share = count / sum(size for size, _ in sizes)
    return f"none: {count:,} weights of the model itself are trained ({share:.1%})"


def _chosen(base: Any, names: set[str], layers: int | str | None) -> set[str]:
    if layers is None:
        outside = beside_language_model(base) if sees_images(base.config) else []
        return {name for name in names if not name.startswith(tuple(f"{one}." for one in outside))}
    if isinstance(layers, str):
        return {name for name in names if re.fullmatch(layers, name)}
    stack = max(
        (one for one in backbone_of(base).modules() if isinstance(one, nn.ModuleList)), key=len
    )
    if layers > len(stack):
        raise ModelError(
            f"train.layers: got {layers}, but the model has {len(stack)} layers. Lower it, or "
            f"remove it to train all weights."
        )
    last = {id(weight) for layer in stack[-layers:] for weight in layer.parameters()}
    return {name for name, weight in base.named_parameters() if id(weight) in last}
