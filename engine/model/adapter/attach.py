"""Attach LoRA adapters to a loaded base model."""

from __future__ import annotations

import warnings

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import nn
from transformers.pytorch_utils import Conv1D

from ...config.schema import AdapterConfig
from ...errors import ModelError
from ..new_tokens import NewRows
from .initial import CHANGES_BASE, init_arguments
from .score_head import SCORE
from .targets import checked_targets, pattern_of, untargeted

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
        ModelError: The model lacks a target, cannot have an adapter on it, or has quantized or
            transposed weights that `adapter.init` cannot use.
    """
    excluded = untargeted(base) if adapter.targets == "all-linear" else []
    whole = [*adapter.modules_to_save, *rows.modules]
    head = [SCORE] if hasattr(base, SCORE) else []
    lora = LoraConfig(
        task_type="CAUSAL_LM",
        r=adapter.r,
        lora_alpha=adapter.alpha,
        lora_dropout=adapter.dropout,
        target_modules=checked_targets(base, adapter),
        exclude_modules=pattern_of(excluded) if excluded else None,
        modules_to_save=[*whole, *head] or None,
        trainable_token_indices=rows.indices or None,
        ensure_weight_tying=bool(whole),
        rank_pattern=adapter.rank_pattern,
        alpha_pattern=adapter.alpha_pattern,
        use_rslora=adapter.rslora,
        use_dora=adapter.dora,
        **init_arguments(adapter.init),
    )
    try:
        model = seeded(base, lora, seed, device)
    except TypeError as error:
        if adapter.init not in CHANGES_BASE:
            raise
        raise ModelError(
            f"adapter.init: {adapter.init} needs unquantized weights ({error}). Set adapter.init: "
            f"default, or use the unquantized variant of the model."
        ) from None
    if adapter.init == "olora":
        _require_linear(model)
    return model


def _require_linear(model: PeftModel) -> None:
    """Refuse layers with transposed weights, for which peft does not transpose OLoRA's matrices.

    Raises:
        ModelError: A layer with an adapter is a Conv1D.
    """
    for name, module in model.named_modules():
        if isinstance(getattr(module, "base_layer", None), Conv1D):
            raise ModelError(
                f"adapter.init: olora would change what this model computes, because "
                f"{name.rpartition('.')[2]} has transposed weights (Conv1D). Set adapter.init: "
                f"pissa, or default."
            )


def seeded(base: nn.Module, lora: LoraConfig, seed: int, device: torch.device) -> PeftModel:
    """Attach an adapter with initial weights from a seed, without changing the random state.

    Raises:
        ValueError: The adapter does not fit the model.
        TypeError: The weights cannot be used for the initialization, for example quantized ones.
    """
    cuda_devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=cuda_devices), warnings.catch_warnings():
        # peft reads a transformers flag by its deprecated name
        warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing.*")
        torch.manual_seed(seed)
        return get_peft_model(base, lora)


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
    without += f", initialized by {adapter.init}" if adapter.init != "default" else ""
    without += "".join(
        f", {name} by module: {pattern}"
        for name, pattern in (("r", adapter.rank_pattern), ("alpha", adapter.alpha_pattern))
        if pattern
    )
    kind += ", rsLoRA" * adapter.rslora
    return f"{kind}, dropout {adapter.dropout:g}, on {targets}{without}"
