"""Conversions of dtype: to fp32 for the losses, and to the 16-bit dtype of a module's weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def widened(tensor: Tensor) -> Tensor:
    """Return a floating-point tensor in fp32; an fp64 tensor is returned unchanged."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def in_weight_dtype(states: Tensor, module: nn.Module) -> Tensor:
    """Return states in the 16-bit dtype of a module's weights; unchanged if it has no such weights.

    Layer norms return fp32 under autocast, while the output head behind them holds 16-bit weights
    and is called where no autocast is active.
    """
    dtypes = (p.dtype for p in module.parameters() if p.dtype in (torch.bfloat16, torch.float16))
    return states.to(next(dtypes, states.dtype))
