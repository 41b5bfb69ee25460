"""Pool the hidden states of each sequence into one vector."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from .numerics import widened

Pooling = Literal["mean", "last", "weighted_mean"]


def pool(hidden: Tensor, mask: Tensor, how: Pooling) -> Tensor:
    """Pool hidden states [B, T, H] over the tokens where `mask` [B, T] is not 0.

    `mean` weighs all tokens equally. `last` takes the last token, the only one that attends to the
    whole text in a causal model. `weighted_mean` weighs the tokens by 1, 2, … n, because early
    tokens attend to little text. Padding may be on either side, and the mask may have gaps. A row
    without tokens gives zeros.

    Returns:
        [B, H] in fp32 (fp64 for fp64 states).

    Source: Muennighoff, "SGPT", 2022 (position-weighted mean).
    """
    if how == "last":
        return _last(hidden, mask)
    states = widened(hidden)
    weights = mask.bool().to(states.dtype)
    if how == "weighted_mean":
        weights = weights * weights.cumsum(dim=1)
    weights = weights / weights.sum(dim=1, keepdim=True).clamp_min(1.0)
    return (states * weights.unsqueeze(-1)).sum(dim=1)


def _last(hidden: Tensor, mask: Tensor) -> Tensor:
    kept = mask.bool()
    from_end = kept.flip(dims=(1,)).to(torch.int64).argmax(dim=1)
    last = hidden.shape[1] - 1 - from_end
    rows = torch.arange(hidden.shape[0], device=hidden.device)
    return widened(hidden[rows, last]) * kept.any(dim=1, keepdim=True)
