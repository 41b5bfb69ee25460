"""Check after loading that logits can be computed from the last hidden states of a model."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ..errors import ModelError
from ..losses.numerics import in_weight_dtype
from .hidden import HiddenStates, backbone_of, lm_head_of

_TOKENS = 4
_CLOSE = {torch.float32: 1e-3}
_CLOSE_OTHERWISE = 5e-2
"""Largest relative difference of the logits; models in 16 bits may round in another order."""


def require_head(base: Any, dtype: torch.dtype, device: torch.device) -> None:
    """Compare the logits of a model with its output head applied to its last hidden states.

    Losses are computed from the hidden states, so that not all logits are in memory at once. A
    model that scales, caps or shifts its logits in a way that `lm_head_of` does not know is
    refused.

    Args:
        base: The loaded base model.
        dtype: The dtype of computation in training.
        device: The device of the model.

    Raises:
        ModelError: The model has no separate head, cannot run here, or its logits differ.
        OutOfMemoryError: The memory of the device does not suffice.
    """
    was_training = base.training
    base.eval()
    try:
        mixed = torch.autocast(device.type, dtype, enabled=dtype != torch.float32)
        with torch.no_grad(), mixed:
            _compare(base, torch.arange(_TOKENS, device=device)[None], dtype)
    finally:
        base.train(was_training)


def _compare(base: Any, ids: torch.Tensor, dtype: torch.dtype) -> None:
    name = type(base).__name__
    try:
        backbone_of(base)
    except (AttributeError, TypeError) as error:
        raise ModelError(f"{name} cannot be trained: {error}. Choose another model.") from error
    head: nn.Module = lm_head_of(base)
    try:
        with HiddenStates(base) as hidden:
            logits = base(input_ids=ids, use_cache=False).logits.float()
            found = head(in_weight_dtype(hidden.take(), head)).float()
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        raise ModelError(_cannot_run(base, error)) from error
    close = _CLOSE.get(dtype, _CLOSE_OTHERWISE)
    if found.shape != logits.shape or not (found - logits).norm() <= close * logits.norm():
        raise ModelError(
            f"{name} changes its logits in a way that fttui does not know, so its loss would be "
            f"wrong. Choose another model."
        )


def _cannot_run(base: Any, error: Exception) -> str:
    line = next(iter(str(error).splitlines()), "")
    step = "Choose another model."
    if getattr(base, "is_quantized", False):
        step = "Set model.quantize: none, because its own code may need unquantized weights."
    return (
        f"{type(base).__name__} cannot run on this machine: {type(error).__name__}: {line}. {step}"
    )
