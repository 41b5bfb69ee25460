"""Precision in which the losses are computed."""

from __future__ import annotations

import torch
from torch import Tensor


def widened(tensor: Tensor) -> Tensor:
    """Return a floating-point tensor in fp32; an fp64 tensor is returned unchanged."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()
