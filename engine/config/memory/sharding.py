"""Memory of a rank that holds a part of the model and gathers one layer at a time (FSDP)."""

from __future__ import annotations

from dataclasses import dataclass

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


@dataclass(frozen=True)
class Gathered:
    """Bytes of whole weights and their gradients on a rank; all 0 without FSDP."""

    in_layers: float = 0
    """While a layer runs backward: that layer and the next one, and ends that are trained."""
    at_loss: float = 0
    """While the loss is computed: the output head, and what a layer leaves until the next one."""


NOTHING_GATHERED = Gathered()


def gathered_bytes(
    config: RunConfig,
    arch: Architecture,
    trained: int,
    frozen_bytes: tuple[float, int],
    trained_bytes: int,
) -> Gathered:
    """Return the bytes of gathered weights and their gradients on a rank.

    A frozen embedding is whole while tokens are embedded, and a frozen head while the loss is
    computed. Trained ones, and the final norm, stay gathered from the forward to the backward pass.

    Args:
        config: The run.
        arch: The sizes of the model.
        trained: Number of trained weights.
        frozen_bytes: Bytes of a frozen weight in a linear, and elsewhere.
        trained_bytes: Bytes of a trained weight.
    """
    if not config.train.shards:
        return NOTHING_GATHERED
    layer, ends = arch.linear_params / arch.layers, arch.other_params
    in_linear, elsewhere = frozen_bytes
    if config.adapter.kind != "none":
        moved = trained / arch.layers * trained_bytes
        held = moved + (0 if config.train.streams else layer * in_linear)
    else:
        moved = held = layer * trained_bytes
    running = LAYERS_AT_ONCE * held + GRADIENTS_AT_ONCE * moved
    if config.train.streams:  # slots are counted with the weights, the head with the loss
        return Gathered(running, held)
    if splits_ends(config):
        return Gathered(running, arch.vocabulary * arch.hidden * elsewhere + held)
    frozen = config.adapter.kind != "none"
    kept = ends * (elsewhere if frozen else trained_bytes * (1 + GRADIENTS_AT_ONCE))
    return Gathered(running + kept, running + kept)


def splits_ends(config: RunConfig) -> bool:
    """Whether embedding and output head are frozen, so that they are whole only while in use."""
    if config.adapter.kind == "none":
        return isinstance(config.train.layers, int)
    targets = config.adapter.targets if isinstance(config.adapter.targets, list) else []
    return not {"lm_head", "embed_tokens"} & {name.rpartition(".")[2] for name in targets}


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
