"""The number of candidates per anchor, and the decision whether GradCache is used to get more."""

from __future__ import annotations

from ..schema import RunConfig
from ..tasks import SCORED_KINDS

FEW_CANDIDATES = 64
"""Candidates in one micro-batch below which more are worth a second forward pass: each doubling
still makes the task notably harder there, and retrieval models are trained with hundreds."""


def pairs_at_once(config: RunConfig) -> int:
    """Return the number of pairs in one micro-batch of all ranks that share candidates."""
    return config.train.micro_batch_size * (
        config.train.ranks if config.contrastive.cross_device else 1
    )


def hard_negatives_used(config: RunConfig) -> int:
    """Return the largest number of hard negatives used per pair; 0 for losses of scored pairs."""
    contrastive = config.contrastive
    return 0 if contrastive.kind in SCORED_KINDS else contrastive.hard_negatives


def uses_gradcache(config: RunConfig) -> bool:
    """Whether candidates come from the whole optimizer step (GradCache) instead of one micro-batch.

    `auto` uses it if one micro-batch alone has fewer than `FEW_CANDIDATES`. False for other tasks
    than contrastive, with a single micro-batch per step, and with `in_batch: false`. Several ranks
    do not need it by themselves: their texts are gathered with a gradient. False also for the loss
    `cosine`, which compares no pairs with each other.
    """
    contrastive = config.contrastive
    if config.task != "contrastive" or config.train.accumulation == 1 or not contrastive.in_batch:
        return False
    if contrastive.kind == "cosine":
        return False
    if contrastive.cross_accumulation == "auto":
        return pairs_at_once(config) * (1 + hard_negatives_used(config)) < FEW_CANDIDATES
    return contrastive.cross_accumulation == "on"


def pairs_compared(config: RunConfig) -> int:
    """Return the number of pairs from which an anchor's candidates come, its own included."""
    if not config.contrastive.in_batch or config.contrastive.kind == "cosine":
        return 1
    return pairs_at_once(config) * (config.train.accumulation if uses_gradcache(config) else 1)


def candidate_facts(config: RunConfig) -> dict[str, str]:
    """Return {label: text} on the number of candidates, to show when a run starts.

    Empty for other tasks than contrastive, and for kind cosine, which compares no pairs.
    """
    if config.task != "contrastive" or config.contrastive.kind == "cosine":
        return {}
    ahead = uses_gradcache(config)
    ranks = config.train.ranks if config.contrastive.cross_device else 1
    parts = [
        f"batch of {config.train.micro_batch_size}",
        f"{config.train.accumulation} micro-batches (GradCache)" if ahead else "",
        f"{ranks} devices" if ranks > 1 else "",
    ]
    origin = " × ".join(part for part in parts if part)
    if config.contrastive.kind == "cosent":
        return {"pairs compared": f"up to {pairs_compared(config):,} ({origin})"}
    return {"candidates per anchor": f"up to {candidates_per_anchor(config):,} ({origin})"}


def candidates_per_anchor(config: RunConfig) -> int:
    """Return how many texts an anchor is compared with at most, its positive included."""
    pairs, hard = pairs_compared(config), hard_negatives_used(config)
    return pairs + hard * (1 if config.contrastive.own_hard_only else pairs)
