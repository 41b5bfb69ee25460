"""Contrastive losses: InfoNCE and pairwise logistic over pooled texts, SimCTG over tokens.

Similarities are cosines computed in fp32 with autocast off: hidden states of language models
point in nearly the same direction, so their differences are lost in half precision.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from .numerics import widened

Score = Callable[[Tensor, Tensor, Tensor, "float | Tensor"], Tensor]
"""(cosines [N, M], positive [N], excluded [N, M], temperature) → loss of each anchor [N]."""

FIGURES = ("pos_cos", "neg_cos", "top1", "masked_share", "candidates")
"""Names of the measurements of every anchor beside its loss."""


@dataclass(frozen=True)
class ContrastiveResult:
    """Sums over anchors, so that the results of the parts of a batch can be added."""

    loss_sum: Tensor
    """Sum of the loss; to be divided by the number of anchors of the whole optimizer step."""
    count: int
    """Number of anchors in the sums."""
    sums: dict[str, Tensor]
    """Detached sums over the anchors, by name. For the losses of this module, in the order of
    `FIGURES`: cosine to the positive; mean cosine to the negatives (0 without any); 1 if the
    positive is strictly the nearest; share of excluded candidates; remaining candidates, the
    positive included."""
    losses: Tensor | None = None
    """Loss of each anchor, [N], whose sum is `loss_sum`; None in a sum of several results."""

    def weighted(self, weights: Tensor | None) -> ContrastiveResult:
        """Return the result with the loss of each anchor times its weight [N]; None is 1.

        The measurements are not weighted. The loss of a step is then the sum divided by the sum of
        the weights.
        """
        if weights is None or self.losses is None:
            return self
        losses = self.losses * weights.to(self.losses.dtype)
        return ContrastiveResult(losses.sum(), self.count, self.sums, losses)

    def loss_alone(self) -> ContrastiveResult:
        """Return the loss with no anchors and zero measurements, to add to another result."""
        nothing = {name: torch.zeros_like(value) for name, value in self.sums.items()}
        return ContrastiveResult(self.loss_sum, 0, nothing)

    def mean(self, name: str) -> float:
        """Return the mean of a measurement over the anchors; 0 without anchors."""
        return float(self.sums[name]) / max(self.count, 1)

    def __add__(self, other: ContrastiveResult) -> ContrastiveResult:
        """Add the sums of two sets of anchors."""
        sums = {name: value + other.sums[name] for name, value in self.sums.items()}
        return ContrastiveResult(self.loss_sum + other.loss_sum, self.count + other.count, sums)


@dataclass(frozen=True)
class Reverse:
    """All anchors for the reverse direction of a symmetric loss, from positives to anchors."""

    anchors: Tensor
    """[A, H], all anchors."""
    own: Tensor
    """[N] index of each anchor of this rank among them."""
    mask: Tensor | None = None
    """[N, A] True where an anchor must not be a negative of a positive; None excludes none."""


def info_nce(
    anchors: Tensor,
    candidates: Tensor,
    positive: Tensor,
    mask: Tensor | None,
    temperature: float | Tensor,
    symmetric: bool | Reverse = False,
    margin: float | None = None,
) -> ContrastiveResult:
    """Sum the InfoNCE loss over the anchors, and the measurements in `FIGURES`.

    The loss of an anchor is the cross-entropy of its positive among the candidates that are not
    excluded.

    Args:
        anchors: [N, H], not normalised; under DDP the anchors of this rank.
        candidates: [M, H]; under DDP those of all ranks, gathered with gradient.
        positive: [N] index of each anchor's positive among the candidates.
        mask: [N, M] True where a candidate must not count as a negative, or None.
        temperature: Divides the cosine; a scalar tensor gets a gradient.
        symmetric: Also score the positive against the anchors and take the mean of both
            directions; a `Reverse` holds the anchors if `anchors` are not all of them.
        margin: Also exclude candidates whose cosine exceeds the positive's by more than this, which
            are likely unlabelled positives; None excludes none by similarity.

    Source: van den Oord et al., "Representation Learning with Contrastive Predictive Coding",
        2018, with cosine similarity.
    """
    return _contrast(
        _softmax_loss, anchors, candidates, positive, mask, temperature, symmetric, margin
    )


def pairwise_logistic(
    anchors: Tensor,
    candidates: Tensor,
    positive: Tensor,
    mask: Tensor | None,
    temperature: float | Tensor,
    symmetric: bool | Reverse = False,
    margin: float | None = None,
) -> ContrastiveResult:
    """Sum a pairwise logistic loss over the anchors, and the measurements in `FIGURES`.

    The loss of an anchor is the mean over its negatives of
    log(1 + exp((cos_negative − cos_positive) / temperature)), or 0 if it has no negative.
    With one negative it equals `info_nce`; with more, the hard negatives do not dominate the
    others. The arguments are those of `info_nce`.

    Source: Burges et al., "Learning to Rank using Gradient Descent", 2005 (the pairwise form).
    """
    return _contrast(
        _logistic_loss, anchors, candidates, positive, mask, temperature, symmetric, margin
    )


def triplet(
    anchors: Tensor,
    candidates: Tensor,
    positive: Tensor,
    mask: Tensor | None,
    temperature: float | Tensor = 1.0,
    symmetric: bool | Reverse = False,
    margin: float | None = None,
    *,
    lead: float,
) -> ContrastiveResult:
    """Sum the triplet loss over the anchors, and the measurements in `FIGURES`.

    The loss of an anchor is the mean over its negatives of
    max(0, cos_negative − cos_positive + lead), or 0 if it has no negative; the cosine of the
    positive is to exceed that of a negative by `lead`. With one negative per anchor it is
    sentence-transformers' `TripletLoss` with the cosine distance. The other arguments are those of
    `info_nce`; the temperature is not used.

    Source: Schroff et al., "FaceNet", 2015, with cosine distance.
    """

    def hinge(cosines: Tensor, own: Tensor, excluded: Tensor, _: float | Tensor) -> Tensor:
        return _mean_over_negatives(torch.relu(_lead_of(cosines, own) + lead), own, excluded)

    return _contrast(hinge, anchors, candidates, positive, mask, temperature, symmetric, margin)


def _contrast(
    score: Score,
    anchors: Tensor,
    candidates: Tensor,
    positive: Tensor,
    mask: Tensor | None,
    temperature: float | Tensor,
    symmetric: bool | Reverse,
    margin: float | None,
) -> ContrastiveResult:
    with torch.autocast(anchors.device.type, enabled=False):
        unit_anchors = F.normalize(widened(anchors), dim=-1)
        unit_candidates = F.normalize(widened(candidates), dim=-1)
        cosines = unit_anchors @ unit_candidates.T
        excluded = _excluded(mask, cosines, positive, margin)
        loss = score(cosines, positive, excluded, temperature)
        if symmetric is not False:
            if symmetric is True:
                symmetric = _within(anchors, positive, mask)
            back = unit_candidates[positive] @ F.normalize(widened(symmetric.anchors), dim=-1).T
            shut = _excluded(symmetric.mask, back, symmetric.own, margin)
            loss = (loss + score(back, symmetric.own, shut, temperature)) / 2
    return ContrastiveResult(
        loss.sum(), len(cosines), _figures(cosines.detach(), positive, excluded), loss
    )


def _within(anchors: Tensor, positive: Tensor, mask: Tensor | None) -> Reverse:
    """Return the reverse direction of a symmetric loss if `anchors` are all anchors.

    The mask [N, M] is reduced to the columns of the positives and transposed to [N, N].
    """
    own = torch.arange(len(anchors), device=anchors.device)
    return Reverse(anchors, own, None if mask is None else mask[:, positive].T)


def _excluded(
    mask: Tensor | None, cosines: Tensor, positive: Tensor, margin: float | None
) -> Tensor:
    """Return [N, M] True where a candidate is excluded by the mask or the margin of `info_nce`.

    The positive of an anchor is never excluded.
    """
    own = positive.unsqueeze(1)
    found = torch.zeros_like(cosines, dtype=torch.bool) if mask is None else mask.bool()
    if margin is not None:
        found = found | (cosines.detach() > cosines.detach().gather(1, own) + margin)
    return found.scatter(1, own, False)


def _softmax_loss(
    cosines: Tensor, positive: Tensor, excluded: Tensor, temperature: float | Tensor
) -> Tensor:
    logits = (cosines / temperature).masked_fill(excluded, -torch.inf)
    return F.cross_entropy(logits, positive, reduction="none")


def _logistic_loss(
    cosines: Tensor, positive: Tensor, excluded: Tensor, temperature: float | Tensor
) -> Tensor:
    lead = _lead_of(cosines, positive) / temperature
    terms = torch.logaddexp(lead, torch.zeros_like(lead))
    return _mean_over_negatives(terms, positive, excluded)


def _lead_of(cosines: Tensor, positive: Tensor) -> Tensor:
    """Return by how much each cosine [N, M] exceeds that of the positive of its anchor."""
    return cosines - cosines.gather(1, positive.unsqueeze(1))


def _mean_over_negatives(terms: Tensor, positive: Tensor, excluded: Tensor) -> Tensor:
    """Return the mean of the terms [N, M] of the negatives of each anchor, [N]; 0 without any."""
    negative = (~excluded).scatter(1, positive.unsqueeze(1), False)
    return (terms * negative).sum(dim=1) / negative.sum(dim=1).clamp_min(1)


def _figures(cosines: Tensor, positive: Tensor, excluded: Tensor) -> dict[str, Tensor]:
    """Return the sums of `FIGURES` over the anchors."""
    own = positive.unsqueeze(1)
    to_positive = cosines.gather(1, own)
    negative = (~excluded).scatter(1, own, False)
    beaten = ((cosines >= to_positive) & negative).any(dim=1)
    negatives = negative.sum(dim=1)
    others = max(cosines.shape[1] - 1, 1)
    return {
        "pos_cos": to_positive.sum(),
        "neg_cos": ((cosines * negative).sum(dim=1) / negatives.clamp_min(1)).sum(),
        "top1": (~beaten).sum().to(cosines.dtype),
        "masked_share": excluded.sum().to(cosines.dtype) / others,
        "candidates": (negatives + 1).sum().to(cosines.dtype),
    }


def simctg(hidden: Tensor, mask: Tensor, margin: float) -> tuple[Tensor, Tensor]:
    """Return the SimCTG loss: the sum of max(0, margin − 1 + cos) over pairs of tokens.

    Args:
        hidden: Hidden states [B, T, H].
        mask: [B, T], not 0 at tokens.
        margin: By how much two tokens should be less similar than a token is to itself.

    Returns:
        The sum over all ordered pairs i ≠ j within a sequence, and their number (int64 scalar).
        The loss of a step is the sum divided by the number, both over the whole step.

    Source: Su et al., "A Contrastive Framework for Neural Text Generation", 2022, equation 2.
    """
    with torch.autocast(hidden.device.type, enabled=False):
        unit = F.normalize(widened(hidden), dim=-1)
        cosines = unit @ unit.transpose(1, 2)
        kept = mask.bool()
        pairs = kept.unsqueeze(1) & kept.unsqueeze(2)
        pairs = pairs & ~torch.eye(pairs.shape[1], dtype=torch.bool, device=pairs.device)
        terms = (margin - 1.0 + cosines).clamp_min(0.0).masked_fill(~pairs, 0.0)
        return terms.sum(), pairs.sum()
