"""Memory of a rank that holds a part of the model and gathers one layer at a time (FSDP)."""

from __future__ import annotations

from ..schema import RunConfig
from .architecture import Architecture

LAYERS_AT_ONCE = 2
"""Layers whose weights are whole at once: the one that computes, and the next one on its way."""
GRADIENTS_AT_ONCE = 2
"""Copies of the gradients of a layer before they are averaged into the parts of the ranks."""


def parts(config: RunConfig) -> int:
    """Return how many ranks share weights, gradients and optimizer state; 1 without FSDP."""
    return config.train.sharing_ranks


def split_weights(held: float, packed: float, ranks: int) -> float:
    """Return the bytes of frozen linears on a rank, which has all quantization constants.

    Args:
        held: Bytes of the linears with their constants.
        packed: Bytes of their weights, if they all are frozen.
        ranks: Number of ranks that share the weights.
    """
    constants = max(held - packed, 0)
    return constants + (held - constants) / ranks


def gradient_copies(config: RunConfig, *, graphs: bool) -> int:
    """Return how many copies of the gradients a rank keeps; DDP without CUDA graphs has two."""
    train = config.train
    return 2 if train.ranks > 1 and not graphs and not train.shards else 1


def gathered_bytes(
    config: RunConfig,
    arch: Architecture,
    trained: int,
    frozen_bytes: tuple[float, int],
    trained_bytes: int,
) -> float:
    """Return the bytes of gathered weights and their gradients on a rank; 0 without FSDP.

    Embeddings, output head and final norm stay gathered from the forward to the backward pass.

    Args:
        config: The run.
        arch: The sizes of the model.
        trained: Number of trained weights.
        frozen_bytes: Bytes of a frozen weight in a linear, and elsewhere.
        trained_bytes: Bytes of a trained weight.
    """
    if not config.train.shards:
        return 0
    layer, ends = arch.linear_params / arch.layers, arch.other_params
    if config.adapter.kind == "none":
        moved = layer * trained_bytes
        at_ends = 0 if isinstance(config.train.layers, int) else ends * trained_bytes
        weights = ends * trained_bytes + LAYERS_AT_ONCE * moved
    else:
        moved, at_ends = trained / arch.layers * trained_bytes, 0
        in_linear, elsewhere = frozen_bytes
        weights = ends * elsewhere + LAYERS_AT_ONCE * (layer * in_linear + moved)
    return weights + GRADIENTS_AT_ONCE * (moved + at_ends)


def casts_at_once(config: RunConfig, arch: Architecture, trained: int) -> float:
    """Return how many trained weights have a 16-bit cast at once in mixed precision.

    Without FSDP all have one during a pass. With FSDP a layer that keeps its activations keeps the
    casts with them, and another layer has them while it runs.
    """
    train = config.train
    if not train.shards:
        return trained
    kept = train.whole_layers if train.recomputes else arch.layers
    layers = (min(kept, arch.layers - 1) + 1) * arch.linear_params / arch.layers
    return min(trained, arch.other_params + layers)
