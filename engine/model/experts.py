"""Mixture-of-experts models: their routers, experts and load balancing loss."""

from __future__ import annotations

import inspect
from typing import Any

from bitsandbytes.nn.parametrize import Bnb4bitParametrization, replace_parameter_4bit
from torch import nn

from ..config.memory.architecture import EXPERTS
from ..config.schema import RunConfig
from ..errors import ConfigError

_ROUTER_WORDS = ("gate", "router")


def experts_per_layer(model: Any) -> int:
    """Return the number of experts per layer; 0 or 1 for a dense model."""
    config = model.config.get_text_config()
    counts = (getattr(config, name, None) for name in EXPERTS)
    return max((count for count in counts if isinstance(count, int)), default=0)


def router_layers(model: Any) -> list[str]:
    """Return the names of the linear layers that select or weight experts.

    They stay in full precision and get no adapter: a small change of a router changes which experts
    process a token.
    """
    experts = experts_per_layer(model)
    if experts < 2:
        return []
    return [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
        and module.out_features in (1, experts)
        and any(word in part for word in _ROUTER_WORDS for part in name.split(".")[-2:])
    ]


def stacked_experts(model: nn.Module) -> list[tuple[nn.Module, str, nn.Parameter]]:
    """Return (module, name, parameter) of unquantized experts in one tensor [E, ., .] per layer.

    They are not linear layers, so neither `all-linear` nor the quantization of transformers covers
    them.
    """
    return [
        (module, name, parameter)
        for path, module in model.named_modules()
        if "expert" in path or "expert" in type(module).__name__.lower()
        for name, parameter in module.named_parameters(recurse=False)
        if parameter.dim() == 3
    ]


def quantize_experts(model: nn.Module, form: str, *, double_quant: bool) -> None:
    """Quantize stacked experts to nf4 or fp4 in place; a layer dequantizes them while it runs."""
    for module, name, _ in stacked_experts(model):
        replace_parameter_4bit(module, name, compress_statistics=double_quant, quant_type=form)


def quantized_experts(model: nn.Module) -> list[Bnb4bitParametrization]:
    """Return the stacked experts that are quantized."""
    return [part for part in model.modules() if isinstance(part, Bnb4bitParametrization)]


def experts_fact(model: Any, config: RunConfig) -> dict[str, str]:
    """Return a line about the experts of a model as {"experts": line}; empty for a dense model.

    Raises:
        ConfigError: A load balancing loss is configured that the model does not compute.
    """
    count = experts_per_layer(model)
    if count < 2:
        return {}
    weights = sum(parameter.numel() for *_, parameter in stacked_experts(model))
    packed = sum(part.quant_state.shape.numel() for part in quantized_experts(model))
    text = f"{count} per layer"
    if weights or packed:
        form = f"in {config.model.quantize.upper()}" if packed else "not quantized"
        text += f"; their {(weights + packed) / 1e6:,.1f} M weights are {form} and get no adapters"
    if config.task == "contrastive":
        return {"experts": f"{text}; no load balancing loss in task {config.task}"}
    weight = balance_weight(model, config.train.router_aux_loss)
    return {"experts": f"{text}; weight of the load balancing loss {weight:g}"}


def computes_balance(model: Any) -> bool:
    """Return whether the model itself computes the load balancing loss of its experts."""
    parameters = inspect.signature(type(model).forward).parameters
    return experts_per_layer(model) > 1 and "output_router_logits" in parameters


def balance_weight(model: Any, asked: float | None) -> float:
    """Return the weight of the load balancing loss; 0 for a model that computes none.

    Args:
        model: The base model.
        asked: The configured weight; None takes that of the model's own configuration.

    Raises:
        ConfigError: A weight is configured, but the model computes no such loss.
    """
    if asked and not computes_balance(model):
        raise ConfigError(
            f"train.router_aux_loss: got {asked:g}, but {type(model).__name__} computes no load "
            f"balancing loss. Set train.router_aux_loss: null."
        )
    if not computes_balance(model):
        return 0.0
    config = model.config.get_text_config()
    own = getattr(config, "router_aux_loss_coef", None) or 0.0
    return float(own if asked is None else asked)
