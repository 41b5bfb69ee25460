"""Vision-language models: text training of the language model, with everything else frozen."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

from ..errors import ModelError
from .hidden import backbone_of

_SAME = 1e-3
"""Largest relative difference of logits that may not depend on later tokens."""
_TOKENS = 4


def sees_images(settings: Any) -> bool:
    """Return whether a transformers configuration is that of a vision-language model."""
    return type(settings) in AutoModelForImageTextToText._model_mapping


def auto_class(settings: Any) -> Any:
    """Return the class of transformers that loads the whole model of a configuration."""
    return AutoModelForImageTextToText if sees_images(settings) else AutoModelForCausalLM


def beside_language_model(model: Any) -> list[str]:
    """Return the names of modules outside language model and head, such as the vision tower.

    Raises:
        TypeError, AttributeError: The model has no backbone apart from its head.
    """
    names = {id(module): name for name, module in model.named_modules()}
    inner = names[id(backbone_of(model))]
    ends = {id(model.get_output_embeddings())}
    found, path = [], model
    for part in inner.split("."):
        prefix = names[id(path)]
        found += [
            f"{prefix}.{name}".lstrip(".")
            for name, child in path.named_children()
            if name != part and id(child) not in ends
        ]
        path = getattr(path, part)
    return found


def never_runs_on_text(model: Any, name: str) -> bool:
    """Return whether a module attends to images only, so that text does not train it."""
    crossing = getattr(model.config.get_text_config(), "cross_attention_layers", None) or []
    return any(f".layers.{number}." in f".{name}" for number in crossing)


def mark_as_text(base: Any, device: torch.device) -> None:
    """Register a hook that marks all tokens as text, if the forward pass needs token types.

    Raises:
        ModelError: The model attends to later tokens of a text, so it would see its targets.
    """
    names = inspect.signature(type(base).forward).parameters
    kinds = [name for name in ("token_type_ids", "mm_token_type_ids") if name in names]

    def add_kinds(module: nn.Module, args: Any, given: dict[str, Any]) -> Any:
        ids = given.get("input_ids")
        if ids is None:
            return args, given
        missing = (name for name in kinds if given.get(name) is None)
        return args, given | {name: torch.zeros_like(ids) for name in missing}

    base.register_forward_pre_hook(add_kinds, with_kwargs=True)
    was_training = base.training
    base.train()
    try:
        _require_causal(base, device)
    finally:
        base.train(was_training)


@torch.no_grad()
def _require_causal(base: Any, device: torch.device) -> None:
    ids = torch.arange(_TOKENS, device=device)[None]
    other = ids.clone()
    other[0, -1] += _TOKENS
    first, second = (_logits(base, one, device) for one in (ids, other))
    if not (first - second).norm() <= _SAME * first.norm():
        raise ModelError(
            f"{type(base).__name__} attends to later tokens of a text, so in training it would see "
            f"the tokens that it is to predict. Choose another model."
        )


def _logits(base: Any, ids: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return the logits of the first token, with the same dropout in every call."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(0)
        mask = torch.ones_like(ids)
        found: torch.Tensor = base(input_ids=ids, attention_mask=mask, use_cache=False).logits
    return found[0, 0].float()
