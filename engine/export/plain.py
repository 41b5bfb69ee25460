"""Trained weights as others use them: for the unchanged base model, or the mean of several."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

import safetensors.torch
import torch

from ..errors import CheckpointError

_FIRST = re.compile(r"\.lora_(embedding_)?A")
_SECOND = re.compile(r"\.lora_(embedding_)?B")
"""Names of the matrices A [rank, inputs] and B [outputs, rank], also of adapters on embeddings."""


def plain_adapter(weights: bytes, settings: bytes, initial: bytes | None) -> tuple[bytes, bytes]:
    """Return the weights and settings of an equivalent adapter for the unchanged base model.

    Adapters with other initializations keep their weights.
    PiSSA and OLoRA subtract the product of the initial matrices from the base weights. The result
    has twice the rank: B·A − B₀·A₀ = [B, −B₀]·[A; A₀]. Alphas stay whole numbers: they are doubled
    with the ranks, or with rsLoRA, which divides by the root of the rank, the matrix A is scaled.

    Args:
        weights: The adapter as safetensors.
        settings: Its adapter_config.json.
        initial: The adapter before training as safetensors; None if the base was not changed.
    """
    found = json.loads(settings)
    changed = str(found.get("init_lora_weights")).lower() in ("pissa", "olora")
    found["init_lora_weights"] = True
    found["eva_config"] = None
    if not changed or initial is None:
        return weights, json.dumps(found).encode()
    first = safetensors.torch.load(initial)
    trained = safetensors.torch.load(weights)
    scale = math.sqrt(2) if found.get("use_rslora") else 1.0
    joined = {name: _joined(name, one, first.get(name), scale) for name, one in trained.items()}
    _double(found)
    return safetensors.torch.save(joined, metadata={"format": "pt"}), json.dumps(found).encode()


def mean_weights(files: Mapping[str, bytes]) -> bytes:
    """Return the mean of the weights of several checkpoints, each in its own precision.

    Args:
        files: the safetensors files by the names of their checkpoints.

    Raises:
        CheckpointError: they do not hold the same weights.
    """
    first, *others = files
    total = {name: t.double() for name, t in safetensors.torch.load(files[first]).items()}
    dtypes = {name: t.dtype for name, t in safetensors.torch.load(files[first]).items()}
    for other in others:
        found = safetensors.torch.load(files[other])
        shapes = {name: tensor.shape for name, tensor in found.items()}
        if shapes != {name: tensor.shape for name, tensor in total.items()}:
            raise CheckpointError(
                f"checkpoints {first} and {other} do not hold the same weights, so they have no "
                "mean; average checkpoints of one configuration"
            )
        for name, tensor in found.items():
            total[name] += tensor.double()
    mean = {name: (one / len(files)).to(dtypes[name]) for name, one in total.items()}
    made: bytes = safetensors.torch.save(mean, metadata={"format": "pt"})
    return made


def _joined(
    name: str, trained: torch.Tensor, first: torch.Tensor | None, scale: float
) -> torch.Tensor:
    if first is not None and _FIRST.search(name):
        return torch.cat((trained.float(), first.float())) * scale
    if first is not None and _SECOND.search(name):
        return torch.cat((trained.float(), -first.float()), dim=1)
    return trained


def _double(settings: dict[str, Any]) -> None:
    """Double the ranks, and without rsLoRA the alphas, so that alpha/r stays the same."""
    factor = 1 if settings.get("use_rslora") else 2
    ranks, alphas = settings.get("rank_pattern") or {}, settings.get("alpha_pattern") or {}
    settings["r"] *= 2
    settings["lora_alpha"] *= factor
    settings["rank_pattern"] = {name: 2 * rank for name, rank in ranks.items()}
    settings["alpha_pattern"] = {name: factor * alpha for name, alpha in alphas.items()}
