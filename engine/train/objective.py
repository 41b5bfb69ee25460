"""The joint objective over one micro-batch: sums and counts, so that any split adds up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..config.schema import ContrastiveConfig
from ..losses.contrastive import ContrastiveResult, exclusion_mask, info_nce
from ..losses.cross_entropy import selected_cross_entropy
from ..losses.pooling import pool


@dataclass(frozen=True)
class PairLoss:
    """What a micro-batch of pairs adds to the step."""

    ce_sum: Tensor
    tokens: Tensor
    """Positions with a next-token target."""
    contrastive: ContrastiveResult
    anchors: Tensor
    """Pooled anchors [B, H], fp32, detached."""
    positives: Tensor


def pair_loss(
    config: ContrastiveConfig, hidden: Tensor, batch: dict[str, Any], lm_head: torch.nn.Module
) -> PairLoss:
    """Next-token and contrastive sums of one micro-batch.

    Args:
        config: pooling, temperature and masks.
        hidden: last hidden states [2B + N, T, H]: anchors, positives, hard negatives.
        batch: as the pair collator makes it.
        lm_head: from hidden states to logits.
    """
    pairs = int(batch["pair_count"])
    if config.ce_weight > 0:
        ce_sum, tokens = selected_cross_entropy(hidden, batch["labels"], lm_head)
    else:
        ce_sum, tokens = hidden.new_zeros(()), hidden.new_zeros(())
    pooled = pool(hidden, batch["attention_mask"], config.pooling)
    anchors, candidates = pooled[:pairs], pooled[pairs:]
    positive = torch.arange(pairs, device=pooled.device)
    excluded = exclusion_mask(
        positive,
        batch["text_hash"][pairs:],
        batch["text_hash"][:pairs],
        batch["label"],
        candidate_labels(batch, pairs),
    )
    result = info_nce(
        anchors,
        candidates,
        positive,
        excluded if config.mask_duplicates else None,
        config.temperature,
        symmetric=config.symmetric,
    )
    return PairLoss(ce_sum, tokens, result, anchors.detach(), candidates[:pairs].detach())


def candidate_labels(batch: dict[str, Any], pairs: int) -> Tensor:
    """Labels [M] of the candidates: a positive has its pair's, a hard negative none."""
    label: Tensor = batch["label"]
    return torch.cat([label, label.new_full((len(batch["text_hash"]) - 2 * pairs,), -1)])
