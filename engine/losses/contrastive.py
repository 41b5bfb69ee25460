"""Contrastive losses: InfoNCE over pooled sequences and SimCTG over tokens.

Similarities are cosines computed in fp32 with autocast off: hidden states of language models
point in nearly the same direction, so their differences are lost in half precision.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from .numerics import widened


@dataclass(frozen=True)
class ContrastiveResult:
    """An InfoNCE loss with what is worth watching about it; the last three are detached."""

    loss_sum: Tensor
    """Sum over the anchors; divide by their number in the whole optimizer step."""
    count: int
    """Anchors in the sum."""
    pos_cos: Tensor
    """Mean cosine of an anchor and its positive."""
    neg_cos: Tensor
    """Mean cosine of an anchor and a candidate counted as its negative; 0 without negatives."""
    top1: Tensor
    """Share of anchors whose positive is strictly the nearest candidate."""


@dataclass(frozen=True)
class Reverse:
    """The other direction of a symmetric loss where anchors come from several ranks."""

    anchors: Tensor
    """[A, H] of all ranks."""
    own: Tensor
    """[N] index of each local anchor among them."""
    mask: Tensor | None = None
    """[N, A] True: this anchor is no negative for that local positive."""


def info_nce(
    anchors: Tensor,
    candidates: Tensor,
    positive: Tensor,
    mask: Tensor | None,
    temperature: float,
    symmetric: bool | Reverse = False,
) -> ContrastiveResult:
    """Score each anchor's positive against all candidates that are not excluded.

    Args:
        anchors: [N, H], not normalised. Under DDP the anchors of this rank.
        candidates: [M, H]. Under DDP those of all ranks, gathered with gradient.
        positive: [N] index of each anchor's positive among the candidates.
        mask: [N, M] True where a candidate must not count as a negative, or None.
        temperature: Divides the cosine.
        symmetric: Also score the positive against the anchors and take the mean of both
            directions; a `Reverse` brings the anchors of the other ranks.

    Source: van den Oord et al., "Representation Learning with Contrastive Predictive Coding",
        2018, with cosine similarity.
    """
    with torch.autocast(anchors.device.type, enabled=False):
        unit_anchors = F.normalize(widened(anchors), dim=-1)
        unit_candidates = F.normalize(widened(candidates), dim=-1)
        cosines = unit_anchors @ unit_candidates.T
        excluded = _excluded(mask, cosines, positive)
        loss_sum = _softmax_loss(cosines, positive, excluded, temperature)
        if symmetric is not False:
            if symmetric is True:
                symmetric = _within(anchors, positive, mask)
            back = unit_candidates[positive] @ F.normalize(widened(symmetric.anchors), dim=-1).T
            shut = _excluded(symmetric.mask, back, symmetric.own)
            loss_sum = (loss_sum + _softmax_loss(back, symmetric.own, shut, temperature)) / 2
    return _measured(loss_sum, cosines.detach(), positive, excluded)


def _within(anchors: Tensor, positive: Tensor, mask: Tensor | None) -> Reverse:
    """The reverse direction among the given anchors, with the mask read the other way."""
    own = torch.arange(len(anchors), device=anchors.device)
    return Reverse(anchors, own, None if mask is None else mask[:, positive].T)


def _excluded(mask: Tensor | None, cosines: Tensor, positive: Tensor) -> Tensor:
    """[N, M] True where a candidate is left out: never the positive itself."""
    if mask is None:
        return torch.zeros_like(cosines, dtype=torch.bool)
    return mask.bool().scatter(1, positive.unsqueeze(1), False)


def _softmax_loss(cosines: Tensor, positive: Tensor, excluded: Tensor, tau: float) -> Tensor:
    logits = (cosines / tau).masked_fill(excluded, -torch.inf)
    return F.cross_entropy(logits, positive, reduction="sum")


def _measured(
    loss_sum: Tensor, cosines: Tensor, positive: Tensor, excluded: Tensor
) -> ContrastiveResult:
    own = positive.unsqueeze(1)
    to_positive = cosines.gather(1, own)
    negative = (~excluded).scatter(1, own, False)
    beaten = ((cosines >= to_positive) & negative).any(dim=1)
    anchors = max(len(cosines), 1)
    return ContrastiveResult(
        loss_sum=loss_sum,
        count=len(cosines),
        pos_cos=to_positive.sum() / anchors,
        neg_cos=(cosines * negative).sum() / negative.sum().clamp_min(1),
        top1=(~beaten).sum() / anchors,
    )


def exclusion_mask(
    positive: Tensor,
    candidate_hash: Tensor,
    anchor_hash: Tensor | None = None,
    anchor_label: Tensor | None = None,
    candidate_label: Tensor | None = None,
) -> Tensor:
    """Find the candidates that must not count as negatives, since they say the same.

    A candidate is excluded if its text equals the positive's or the anchor's, or if both labels
    are known and equal.

    Args:
        positive: [N] index of each anchor's positive.
        candidate_hash: [M] int64 hash of each candidate's token ids after truncation.
        anchor_hash: [N] the same of the anchors.
        anchor_label: [N] int64, negative = unknown.
        candidate_label: [M] int64, negative = unknown.

    Returns:
        [N, M] bool; never True at the positive.
    """
    mask = candidate_hash[positive].unsqueeze(1) == candidate_hash
    if anchor_hash is not None:
        mask |= anchor_hash.unsqueeze(1) == candidate_hash
    if anchor_label is not None and candidate_label is not None:
        same = anchor_label.unsqueeze(1) == candidate_label
        mask |= same & (candidate_label >= 0)
    return mask.scatter(1, positive.unsqueeze(1), False)


def simctg(hidden: Tensor, mask: Tensor, margin: float) -> Tensor:
    """Push apart the tokens of one sequence: mean of max(0, margin − 1 + cos) over their pairs.

    Args:
        hidden: Hidden states [B, T, H].
        mask: [B, T], not 0 at tokens.
        margin: How much less similar two tokens should be than a token is to itself.

    Returns:
        Scalar: the mean over all ordered pairs i ≠ j within a sequence, of the whole batch at
        once; 0 without a pair.

    Source: Su et al., "A Contrastive Framework for Neural Text Generation", 2022, equation 2.
    """
    with torch.autocast(hidden.device.type, enabled=False):
        unit = F.normalize(widened(hidden), dim=-1)
        cosines = unit @ unit.transpose(1, 2)
        kept = mask.bool()
        pairs = kept.unsqueeze(1) & kept.unsqueeze(2)
        pairs = pairs & ~torch.eye(pairs.shape[1], dtype=torch.bool, device=pairs.device)
        terms = (margin - 1.0 + cosines).clamp_min(0.0).masked_fill(~pairs, 0.0)
        return terms.sum() / pairs.sum().clamp_min(1)
