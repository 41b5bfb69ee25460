"""The micro-batches into which an optimizer step may be divided, and what they cost."""

from __future__ import annotations

import random
from collections.abc import Sequence

from ..schema import RunConfig
from .estimate import sequences_per_micro_batch

PASS_TOKENS = 500
"""What a micro-batch costs beside its tokens, in tokens: its weights are read and dequantized, and
its products are smaller. Measured on one H200 in NF4: 320 (8B, T 2048) to 790 (1B, T 512)."""
CPU_TOKENS = 1024
"""Largest micro-batch of `train.batch: auto` on a CPU, in tokens, unless one sequence has more. It
is enough for products of full speed there, and a pause waits for a micro-batch."""
BALANCED = (
    "the load balancing loss of experts is computed for each micro-batch, so the result would "
    "depend on its size; set a number, or train.router_aux_loss: 0"
)
"""Why the sequences of a mixture of experts stay single."""
_STEPS_DRAWN = 64
"""Steps whose padding is computed from drawn lengths."""
RECOMPUTED = 1 / 3
"""What recomputing all layers adds to the cost, as measured on the same device."""


def micro_batch_sizes(config: RunConfig) -> list[int]:
    """Return the sizes that `train.batch: auto` may choose from, the smallest first.

    They divide the sequences of a rank and step. Packed rows with flash_attention_2 are alone.
    """
    total = config.train.sequences_per_update or 1
    own = max(1, total // config.train.ranks)
    if config.data.packing and config.model.attention == "flash_attention_2":
        return [1]
    return [size for size in range(1, own + 1) if own % size == 0]


def reasonable_on_cpu(config: RunConfig) -> bool:
    """Whether a micro-batch is small enough for a CPU; one sequence always is."""
    tokens = sequences_per_micro_batch(config) * config.data.max_length
    return config.train.micro_batch_size == 1 or tokens <= CPU_TOKENS


def why_batch_matters(config: RunConfig) -> str:
    """Return why the result depends on the micro-batch; empty if it only rounds differently."""
    own = config.contrastive
    if config.task != "contrastive" or not own.in_batch or own.kind == "cosine":
        return ""
    if own.cross_accumulation == "on":
        return ""
    return "the texts of a micro-batch are each other's negatives"


def divides_by_length(config: RunConfig) -> bool:
    """Whether the micro-batches of a step hold sequences of similar lengths, so as to pad less.

    Not where the texts of a micro-batch are compared with each other, nor of packed rows.
    """
    divided = config.train.sequences_per_update is not None and config.train.accumulation > 1
    return divided and not config.data.packing and not why_batch_matters(config)


def balances_experts(config: RunConfig, *, mixture: bool) -> bool:
    """Whether the load balancing loss of experts is trained, which depends on the micro-batch."""
    return mixture and config.train.router_aux_loss != 0


def smaller_micro_batch(config: RunConfig, *, mixture: bool) -> int | None:
    """Return the next smaller micro-batch with the same result; None if there is none.

    Args:
        config: A run whose micro-batch is decided.
        mixture: Whether the model is a mixture of experts.
    """
    if config.train.sequences_per_update is None or why_batch_matters(config):
        return None
    if balances_experts(config, mixture=mixture):
        return None
    return max(
        filter(config.train.micro_batch_size.__gt__, micro_batch_sizes(config)), default=None
    )


def noise_by_batch(config: RunConfig) -> list[str]:
    """Return the settings with which another micro-batch draws other random numbers."""
    found = [("adapter.dropout", config.adapter.dropout if config.adapter.kind == "lora" else 0.0)]
    found.append(("train.neftune", config.train.neftune))
    return [f"{key}: {value:g}" for key, value in found if value]


def work_of_update(config: RunConfig, layers: int, lengths: Sequence[int] = ()) -> float:
    """Return the work of an optimizer step on a GPU, as a number of tokens that pass the model.

    Args:
        config: A run whose micro-batch and activation checkpointing are decided.
        layers: Number of decoder layers of the model.
        lengths: Tokens of rows that stand for all; empty takes every row as `data.max_length`.
    """
    train = config.train
    recomputed = 1 - min(train.whole_layers, layers) / layers if train.recomputes else 0.0
    texts = sequences_per_micro_batch(config) / train.micro_batch_size
    tokens = texts * _padded_tokens(config, lengths or [config.data.max_length])
    work = tokens + train.accumulation * PASS_TOKENS
    return work * (1 + RECOMPUTED * recomputed)


def _padded_tokens(config: RunConfig, lengths: Sequence[int]) -> float:
    """Return the tokens of the rows of a rank's step with padding, in the mean over some steps."""
    size, each = config.train.micro_batch_size, config.train.accumulation
    draw, total = random.Random(0), 0
    for _ in range(_STEPS_DRAWN):
        rows = draw.choices(lengths, k=size * each)
        if divides_by_length(config):
            rows.sort(reverse=True)
        total += size * sum(max(rows[n : n + size]) for n in range(0, len(rows), size))
    return total / _STEPS_DRAWN


def divided_text(config: RunConfig, larger: str) -> str:
    """Return how the sequences of an optimizer step are divided, and why not into larger parts.

    Args:
        config: A run whose micro-batch is decided.
        larger: Why the next larger micro-batch is not taken; empty if there is none.
    """
    train = config.train
    ranks = f" on each of {train.ranks} ranks" if train.ranks > 1 else ""
    parts = f"{train.accumulation} micro-batch{'es' * (train.accumulation != 1)}{ranks}"
    reason = f"; {larger}" if larger else ""
    return (
        f"train.batch: {train.micro_batch_size} ({train.sequences_per_update} sequences per update "
        f"in {parts}{reason})"
    )
