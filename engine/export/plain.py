"""Converts an adapter for changed base weights (PiSSA, OLoRA) into one for the unchanged base."""

from __future__ import annotations

import json
import math
from typing import Any

import safetensors.torch
import torch


def plain_adapter(weights: bytes, settings: bytes, initial: bytes | None) -> tuple[bytes, bytes]:
    """Return the weights and settings of an equivalent adapter for the unchanged base model.

    PiSSA and OLoRA subtract the product of the initial matrices from the base weights. The result
    has twice the rank: B·A − B₀·A₀ = [B, −B₀]·[A; A₀].

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
    joined = {name: _joined(name, one, first.get(name)) for name, one in trained.items()}
    _double(found)
    return safetensors.torch.save(joined, metadata={"format": "pt"}), json.dumps(found).encode()


def _joined(name: str, trained: torch.Tensor, first: torch.Tensor | None) -> torch.Tensor:
    if first is None or not ("lora_A" in name or "lora_B" in name):
        return trained
    if "lora_A" in name:
        return torch.cat((trained.float(), first.float()))
    return torch.cat((trained.float(), -first.float()), dim=1)


def _double(settings: dict[str, Any]) -> None:
    """Double the ranks, and change the alphas so that the scaling stays the same."""
    factor = math.sqrt(2) if settings.get("use_rslora") else 2
    ranks, alphas = settings.get("rank_pattern") or {}, settings.get("alpha_pattern") or {}
    settings["r"] *= 2
    settings["lora_alpha"] *= factor
    settings["rank_pattern"] = {name: 2 * rank for name, rank in ranks.items()}
    settings["alpha_pattern"] = {name: factor * alpha for name, alpha in alphas.items()}
