"""Losses and measurements for text pairs with similarity scores: CoSENT and squared error.

Cosines are compared in fp32 with autocast off, as in the contrastive losses.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from .numerics import widened

COMPARED_AT_ONCE = 2**22
"""Elements of one block of the matrix that compares all pairs of texts with each other."""


def pair_cosines(anchors: Tensor, positives: Tensor) -> Tensor:
    """Return the cosine [N] of each anchor [N, H] and the text [N, H] of its pair."""
    with torch.autocast(anchors.device.type, enabled=False):
        units = F.normalize(widened(anchors), dim=-1), F.normalize(widened(positives), dim=-1)
        return (units[0] * units[1]).sum(dim=-1)


def cosent(cosines: Tensor, scores: Tensor, temperature: float | Tensor) -> Tensor:
    """Return log(1 + Σ exp((cosⱼ − cosᵢ) / temperature)) over all i, j with scoreᵢ > scoreⱼ.

    Only the order of the scores matters. Without two different scores the loss is 0.

    Args:
        cosines: [N] cosine of each pair.
        scores: [N] score of each pair, not NaN.
        temperature: Divides the cosines; the inverse of the scale in sentence-transformers.

    Source: Huang et al., "CoSENT: Consistent Sentence Embedding via Similarity Ranking", 2024.
    """
    terms = [cosines.new_zeros(1)]
    for rows in _blocks(len(cosines)):
        excess = (cosines.unsqueeze(0) - cosines[rows].unsqueeze(1)) / temperature
        above = scores[rows].unsqueeze(1) > scores.unsqueeze(0)
        # A finite number, because the gradient of logsumexp over −inf alone is NaN.
        hidden = excess.masked_fill(~above, torch.finfo(excess.dtype).min)
        terms.append(torch.logsumexp(hidden.flatten(), dim=0, keepdim=True))
    return torch.logsumexp(torch.cat(terms), dim=0)


def squared_errors(cosines: Tensor, scores: Tensor) -> Tensor:
    """Return (cosine − score)² of each pair; their mean is sentence-transformers' cosine loss."""
    return (cosines - scores.to(cosines.dtype)).square()


def ordered_share(cosines: Tensor, scores: Tensor) -> Tensor:
    """Return the share of comparisons in which two pairs have the same order by cosine as by score.

    Pairs with equal scores are not compared. Without two different scores the share is 1.
    """
    right = compared = torch.zeros((), dtype=torch.int64, device=cosines.device)
    for rows in _blocks(len(cosines)):
        above = scores[rows].unsqueeze(1) > scores.unsqueeze(0)
        compared = compared + above.sum()
        right = right + (above & (cosines[rows].unsqueeze(1) > cosines.unsqueeze(0))).sum()
    return torch.where(compared > 0, right / compared.clamp_min(1), 1.0)


def spearman(values: Tensor, others: Tensor) -> float:
    """Return Spearman's rank correlation of two series [N]; 0 if one of them is constant."""
    one, two = (_ranks(series) for series in (values, others))
    one, two = one - one.mean(), two - two.mean()
    spread = (one.square().sum() * two.square().sum()).sqrt()
    return float((one * two).sum() / spread) if spread > 0 else 0.0


def _ranks(series: Tensor) -> Tensor:
    """Return the rank of each value, fp64 on the CPU; equal values share their mean rank."""
    _, group, counts = torch.unique(series.cpu(), return_inverse=True, return_counts=True)
    ranks: Tensor = counts.cumsum(0).double() - (counts.double() - 1) / 2
    return ranks.index_select(0, group)


def _blocks(count: int) -> Iterator[slice]:
    size = max(1, COMPARED_AT_ONCE // max(1, count))
    return (slice(start, start + size) for start in range(0, count, size))
