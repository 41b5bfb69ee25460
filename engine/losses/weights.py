"""The weights of records and tokens in a batch: factors on their loss.

The loss of a step is Σ wᵢ ℓᵢ / Σ wᵢ over all its records, or tokens, on all ranks. Without weights
every wᵢ is 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .cross_entropy import IGNORED
from .gather import sums_over_ranks

Batch = dict[str, Any]
TOKENS, RECORDS = "weights", "record_weights"
"""Keys of a batch: weights of its tokens [B, T], and of its records [B]."""


def drop_weights(batch: Batch) -> None:
    """Remove all weights of a batch, so that every record and token counts once."""
    batch.pop(TOKENS, None)
    batch.pop(RECORDS, None)


def record_weights(batch: Batch) -> Tensor | None:
    """Return the weights of the records of a batch, [B]; None if all are 1."""
    found: Tensor | None = batch.get(RECORDS)
    return found


def weighted_sum(losses: Tensor, weights: Tensor | None) -> Tensor:
    """Return the sum of losses [B], each times its weight; None is 1."""
    return losses.sum() if weights is None else (losses * weights.to(losses.dtype)).sum()


def weights_of(batch: Batch, count: int) -> list[float]:
    """Return the weights of the `count` records of a batch on the host."""
    found = record_weights(batch)
    return [1.0] * count if found is None else found.tolist()


def total_weight(counts: Sequence[tuple[Batch, int]]) -> float:
    """Return the weight of all records of a step on all ranks; a collective.

    Args:
        counts: each batch of this rank with its number of records.
    """
    own = sum(sum(weights_of(batch, count)) for batch, count in counts)
    return sums_over_ranks([own])[0]


def token_weights(batch: Batch) -> Tensor | None:
    """Return the weights of the tokens of a batch, [B, T] or [B, 1]; None if all are 1.

    Both texts of a pair have the weight of the pair; its hard negatives have no targets.
    """
    if TOKENS in batch:
        found: Tensor = batch[TOKENS]
        return found
    weights = record_weights(batch)
    if weights is None or "negative_owner" not in batch:
        return None
    negatives = weights.new_zeros(len(batch["negative_owner"]))
    return torch.cat((weights, weights, negatives)).unsqueeze(1)


def weight_of_targets(batch: Batch) -> float:
    """Return the summed weights of the targets of a batch, whose labels are not shifted."""
    wanted = batch["labels"][:, 1:] != IGNORED
    weights = token_weights(batch)
    if weights is None:
        return float(wanted.sum())
    each = weights.expand(batch["labels"].shape)[:, 1:]
    return float((each.to(torch.float64) * wanted).sum())
