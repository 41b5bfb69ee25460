"""Sizes that the training code works within and the memory estimate counts with.

Each is defined here once, without torch, so that an estimate cannot differ from what runs.
"""

from __future__ import annotations

LOGITS_AT_ONCE = 2**24
"""Elements of one chunk of logits: 192 MiB with its gradients, and 256 MiB in fast mode."""
FUSED_LOGITS_AT_ONCE = 2**27
"""Elements of one chunk of logits that its gradient overwrites: 256 MiB in half precision."""
TILE = 128
"""Tokens in a tile of a matrix product; a partial tile costs as much as a whole one."""
SLICE_LOGITS = 2**23
"""Elements of one block of logits of a sliced head, tokens times a slice of the vocabulary: 32 MiB
in fp32."""
SLICE_ELEMENTS = 2**26
"""Elements of the output matrix that are dequantized at once in lean mode: 128 MiB in half
precision, as much as a large linear layer."""
SLOTS = 2
"""Slots on the device for streamed layers, and for streamed slices of the head: one computes while
the next one is copied."""
KEPT_GRAPH_BYTES = 128 * 2**20
"""Bytes of autograd graphs that GradCache keeps from the first pass to the second. A larger value
spares more second forward passes and raises the peak memory of a step by as much."""


def chunk_tokens_for(vocabulary: int) -> int:
    """Return the tokens whose logits are in memory at once, for a size of the vocabulary."""
    return max(1, LOGITS_AT_ONCE // vocabulary)


def fused_chunk_tokens_for(vocabulary: int) -> int:
    """Return the tokens of a chunk of logits that its gradient overwrites, in whole tiles."""
    return whole_tiles(FUSED_LOGITS_AT_ONCE // vocabulary)


def whole_tiles(tokens: int) -> int:
    """Return a number of tokens rounded down to whole tiles, but at least one tile."""
    return max(TILE, tokens // TILE * TILE)


def graph_elements_per_token(hidden: int, intermediate: int, layers: int, whole_layers: int) -> int:
    """Return roughly how many activations per token the graph of a forward pass holds.

    Args:
        hidden: Width of the hidden states.
        intermediate: Width of the MLP.
        layers: Decoder layers of the model.
        whole_layers: Layers that keep all their activations; the others keep only their input.
    """
    whole = min(whole_layers, layers)
    return hidden * (layers - whole) + (8 * hidden + 4 * intermediate) * whole
