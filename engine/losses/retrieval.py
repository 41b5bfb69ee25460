"""How well anchors find their texts: the usual measures of retrieval."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from .numerics import widened

NDCG_DEPTH = 10


def retrieval_sums(anchors: Tensor, corpus: Tensor, relevant: Tensor) -> dict[str, Tensor]:
    """Rank a corpus by cosine for each anchor and sum the measures over the anchors.

    A text that is not relevant and as near as a relevant one is ranked before it, so that equal
    vectors never count as found.

    Args:
        anchors: [N, H].
        corpus: [M, H], M > 0.
        relevant: [N, M] True where a text answers the anchor; at least one per anchor.

    Returns:
        Sums over anchors of `recall_at_1` and `recall_at_5` (a relevant text is among the first
        1, 5), `mrr` (1 / rank of the first relevant one) and `ndcg_at_10`.
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
    """Count the hard negatives that are farther from their anchor than its positive.

    Args:
        anchors: [N, H].
        positives: [N, H], one per anchor.
        negatives: [K, H].
        owner: [K] the anchor a negative belongs to.
    """
    to_positive = F.cosine_similarity(widened(anchors), widened(positives), dim=-1)[owner]
    to_negative = F.cosine_similarity(widened(anchors)[owner], widened(negatives), dim=-1)
    return (to_positive > to_negative).sum()


def cosine_matrix(rows: Tensor, columns: Tensor) -> Tensor:
    """Cosines [N, M] in fp32, autocast off."""
    with torch.autocast(rows.device.type, enabled=False):
        return F.normalize(widened(rows), dim=-1) @ F.normalize(widened(columns), dim=-1).T


def _ranking(cosines: Tensor, relevant: Tensor) -> Tensor:
    """[N, M] indices, nearest first; at equal cosines relevant texts come last."""
    pessimistic = relevant.to(torch.int64).argsort(dim=1, stable=True)
    nearest = cosines.gather(1, pessimistic).argsort(dim=1, descending=True, stable=True)
    return pessimistic.gather(1, nearest)


def _ndcg(hits: Tensor) -> Tensor:
    """[N] discounted gain of the first texts over the best there could be."""
    depth = min(NDCG_DEPTH, hits.shape[1])
    places = torch.arange(2, depth + 2, device=hits.device, dtype=torch.float64)
    discount = places.log2().reciprocal()
    gain = (hits[:, :depth] * discount).sum(dim=1)
    best = discount.cumsum(dim=0)[hits.sum(dim=1).clamp(1, depth) - 1]
    return gain / best
