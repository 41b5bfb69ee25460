"""The precision losses are computed in."""

from __future__ import annotations

import torch
from torch import Tensor


def widened(tensor: Tensor) -> Tensor:
    """Return a floating tensor in fp32, or as it is where it is fp64."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()
