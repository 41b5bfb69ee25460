"""Retrieval metrics: recall, MRR, nDCG and triplet accuracy."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from .numerics import widened

NDCG_DEPTH = 10
"""Number of the best-ranked texts that nDCG counts."""


def retrieval_sums(anchors: Tensor, corpus: Tensor, relevant: Tensor) -> dict[str, Tensor]:
    """Rank a corpus by cosine for each anchor and sum the metrics over the anchors.

    At equal cosines, irrelevant texts are ranked before relevant ones, so that equal vectors
    never improve a metric.

    Args:
        anchors: [N, H].
        corpus: [M, H], M > 0.
        relevant: [N, M] True where a text is relevant to the anchor; at least one per anchor.

    Returns:
        Sums over anchors of `recall_at_1` and `recall_at_5` (a relevant text is among the first
        1 or 5), `mrr` (1 / rank of the first relevant text) and `ndcg_at_10`.
    """
    cosines = cosine_matrix(anchors, corpus)
    order = _ranking(cosines, relevant)
    hits = relevant.gather(1, order)
    first = hits.to(torch.int64).argmax(dim=1) + 1
    return {
        "recall_at_1": (first <= 1).sum(),
        "recall_at_5": (first <= 5).sum(),
        "mrr": (1.0 / first).sum(),
        "ndcg_at_10": _ndcg(hits).sum(),
    }


def triplet_sums(anchors: Tensor, positives: Tensor, negatives: Tensor, owner: Tensor) -> Tensor:
    """Count the hard negatives that are less similar to their anchor than its positive is.

    Args:
        anchors: [N, H].
        positives: [N, H], one per anchor.
        negatives: [K, H].
        owner: [K] the anchor of each negative.
    """
    to_positive = F.cosine_similarity(widened(anchors), widened(positives), dim=-1)[owner]
    to_negative = F.cosine_similarity(widened(anchors)[owner], widened(negatives), dim=-1)
    return (to_positive > to_negative).sum()


def cosine_matrix(rows: Tensor, columns: Tensor) -> Tensor:
    """Return the cosines [N, M] of rows [N, H] and columns [M, H] in fp32, with autocast off."""
    with torch.autocast(rows.device.type, enabled=False):
        return F.normalize(widened(rows), dim=-1) @ F.normalize(widened(columns), dim=-1).T


def _ranking(cosines: Tensor, relevant: Tensor) -> Tensor:
    """Return indices [N, M], nearest first; at equal cosines relevant texts come last."""
    pessimistic = relevant.to(torch.int64).argsort(dim=1, stable=True)
    nearest = cosines.gather(1, pessimistic).argsort(dim=1, descending=True, stable=True)
    return pessimistic.gather(1, nearest)


def _ndcg(hits: Tensor) -> Tensor:
    """Return nDCG [N] from relevance in ranked order [N, M]: gain divided by the best possible."""
    depth = min(NDCG_DEPTH, hits.shape[1])
    places = torch.arange(2, depth + 2, device=hits.device, dtype=torch.float64)
    discount = places.log2().reciprocal()
    gain = (hits[:, :depth] * discount).sum(dim=1)
    best = discount.cumsum(dim=0)[hits.sum(dim=1).clamp(1, depth) - 1]
    return gain / best
