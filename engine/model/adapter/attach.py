"""Attach LoRA adapters to a loaded base model."""

from __future__ import annotations

import re
import warnings
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import nn
from transformers.pytorch_utils import Conv1D

from ...config.schema import AdapterConfig
from ...errors import ModelError
from ..experts import router_layers
from ..new_tokens import NewRows

_FUSED_IN_MAMBA = frozenset({"out_proj", "conv1d"})
"""Layers of state-space models whose weights their kernels read directly, past an adapter."""
_MAMBA = frozenset({"falcon_h1", "mamba", "mamba2", "falcon_mamba", "nemotron_h"})
"""Model types in which peft refuses adapters on such layers.

Source: peft, `tuners_utils._check_lora_target_modules_mamba`.
"""


_READ_BY_STATE_SPACES = frozenset({"x_proj", "dt_proj", "out_proj"})


def attach_adapters(
    base: nn.Module, adapter: AdapterConfig, rows: NewRows, seed: int, device: torch.device
) -> PeftModel:
    """Attach new adapters whose initial weights depend only on the seed.

    Args:
        base: The frozen base model.
        adapter: Settings of the adapters.
        rows: Rows of new tokens, which are trained as well.
        seed: Seed of the initial weights.
        device: Device of the adapters.

    Raises:
        ModelError: The model lacks a target, or cannot have an adapter on it.
    """
    excluded = untargeted(base) if adapter.targets == "all-linear" else []
    whole = [*adapter.modules_to_save, *rows.modules]
    lora = LoraConfig(
        task_type="CAUSAL_LM",
        r=adapter.r,
        lora_alpha=adapter.alpha,
        lora_dropout=adapter.dropout,
        target_modules=_targets(base, adapter),
        exclude_modules=_pattern(excluded) if excluded else None,
        modules_to_save=whole or None,
        trainable_token_indices=rows.indices or None,
        ensure_weight_tying=bool(whole),
        rank_pattern=adapter.rank_pattern,
        alpha_pattern=adapter.alpha_pattern,
        use_rslora=adapter.rslora,
        use_dora=adapter.dora,
    )
    return seeded(base, lora, seed, device)


def seeded(base: nn.Module, lora: LoraConfig, seed: int, device: torch.device) -> PeftModel:
    """Attach an adapter with initial weights by the seed, and keep the global random state."""
    cuda_devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=cuda_devices), warnings.catch_warnings():
        # peft reads a transformers flag by its deprecated name
        warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing.*")
        torch.manual_seed(seed)
        return get_peft_model(base, lora)


def untargeted(base: nn.Module) -> list[str]:
    """Return the last parts of the names of the linear layers that `all-linear` leaves out."""
    routers = {name.rpartition(".")[2] for name in router_layers(base)}
    return sorted(routers | (_fused(base) & linear_names(base)))


def targeted_by_all_linear(base: nn.Module) -> set[str]:
    """Return the names of the layers of a model on which `all-linear` puts an adapter."""
    excluded = set(untargeted(base))
    head: Any = getattr(base, "get_output_embeddings", lambda: None)()
    return {
        name
        for name, module in base.named_modules()
        if isinstance(module, nn.Linear | Conv1D)
        and module is not head
        and name.rpartition(".")[2] not in excluded
    }


def unquantized_layers(model: nn.Module) -> list[str]:
    """Return the names of the linear layers whose weights the code of the model reads directly.

    State-space models (Mamba) multiply by these weights outside the layer, so they cannot be in 4
    bits.
    """
    return [
        f"{name}.{part}"
        for name, module in model.named_modules()
        if "mamba" in type(module).__name__.lower()
        for part, layer in module.named_children()
        if part in _READ_BY_STATE_SPACES and isinstance(layer, nn.Linear)
    ]


def _fused(base: nn.Module) -> frozenset[str]:
    kind = getattr(getattr(base, "config", None), "model_type", "")
    return _FUSED_IN_MAMBA if kind in _MAMBA else frozenset()


def _pattern(names: list[str]) -> str:
    return rf"(.*\.)?({'|'.join(map(re.escape, names))})"


def _targets(base: nn.Module, adapter: AdapterConfig) -> str | list[str]:
    if isinstance(adapter.targets, str):
        return adapter.targets
    present = linear_names(base)
    missing = [name for name in adapter.targets if name not in present]
    if missing:
        raise ModelError(
            f"adapter.targets: this model has no linear layer named {', '.join(missing)}. "
            f"It has {', '.join(sorted(present))}. Name some of these, or set all-linear."
        )
    fused = sorted(_fused(base).intersection(adapter.targets))
    if fused:
        raise ModelError(
            f"adapter.targets: {', '.join(fused)} cannot have an adapter in this model, because "
            f"its kernels read the weights directly. Leave it out, or set all-linear."
        )
    return list(adapter.targets)


def linear_names(model: nn.Module) -> set[str]:
    """Return the names of all linear layers, also in 4 bits, without path, such as `q_proj`."""
    return {
        name.rpartition(".")[2]
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
    }


def cast_trainable(model: nn.Module, dtype: torch.dtype) -> None:
    """Convert all trainable parameters to a dtype, in place."""
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.to(dtype)


def adapter_fact(base: nn.Module, adapter: AdapterConfig) -> str:
    """Return a line that describes the adapters."""
    kind = f"{'DoRA' if adapter.dora else 'LoRA'} r {adapter.r} alpha {adapter.alpha}"
    targets = adapter.targets if isinstance(adapter.targets, str) else ", ".join(adapter.targets)
    excluded = untargeted(base) if adapter.targets == "all-linear" else []
    without = f" without {', '.join(excluded)}" if excluded else ""
    return f"{kind}{' rs' * adapter.rslora}, dropout {adapter.dropout:g}, on {targets}{without}"
