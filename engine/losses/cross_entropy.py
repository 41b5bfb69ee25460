"""Next-token cross entropy that never holds all logits at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from .numerics import widened

IGNORED = -100
"""Label of a position that carries no loss."""
LOGITS_AT_ONCE = 2**24
"""Elements of one chunk of logits: about 200 MB with its gradient in mixed precision."""


def selected_cross_entropy(
    hidden: Tensor, labels: Tensor, lm_head: nn.Module, chunk_tokens: int | None = None
) -> tuple[Tensor, Tensor]:
    """Sum the next-token loss over the positions that have a label.

    The head runs on those positions only, a chunk of tokens at a time. With a frozen head each
    chunk's gradient is taken right away, so logits are computed once; with a trainable head they
    are computed again in the backward pass.

    Args:
        hidden: Last hidden states [B, T, H]; position t predicts token t + 1.
        labels: [B, T] token ids, -100 = no loss.
        lm_head: Maps [n, H] to logits [n, V].
        chunk_tokens: Tokens per chunk; None fits `LOGITS_AT_ONCE`.

    Returns:
        The loss sum (fp32 scalar) and the number of tokens in it (int64 scalar). Without any label
        the sum is 0 and still belongs to the graph of `hidden`.
    """
    targets = labels[:, 1:].reshape(-1)
    index = (targets != IGNORED).nonzero().squeeze(1)
    states = hidden[:, :-1].reshape(-1, hidden.shape[-1]).index_select(0, index)
    targets = targets.index_select(0, index)
    count = (targets != IGNORED).sum()
    if len(targets) == 0:
        return widened(states).sum(), count
    size = chunk_tokens or chunk_tokens_for(_vocabulary(lm_head))
    if any(parameter.requires_grad for parameter in lm_head.parameters()):
        return _recomputed(states, targets, lm_head, size), count
    fused: Callable[..., Tensor] = _FrozenHead.apply
    return fused(states, targets, lm_head, size), count


def chunk_tokens_for(vocabulary: int) -> int:
    """Return how many tokens' logits are held at once."""
    return max(1, LOGITS_AT_ONCE // vocabulary)


def _vocabulary(lm_head: nn.Module) -> int:
    sizes = (getattr(m, "out_features", None) for m in lm_head.modules())
    return int(next(size for size in sizes if size is not None))


def _chunk_loss(states: Tensor, targets: Tensor, lm_head: nn.Module) -> Tensor:
    logits = widened(lm_head(states))
    return F.cross_entropy(logits, targets, reduction="sum")


def _chunks(states: Tensor, targets: Tensor, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    for start in range(0, len(targets), size):
        yield states[start : start + size], targets[start : start + size]


def _recomputed(states: Tensor, targets: Tensor, lm_head: nn.Module, size: int) -> Tensor:
    parts = _chunks(states, targets, size)
    losses = [checkpoint(_chunk_loss, s, t, lm_head, use_reentrant=False) for s, t in parts]
    return torch.stack(losses).sum()


class _FrozenHead(torch.autograd.Function):
    """Loss sum whose gradient by the states is computed in the forward pass.

    The loss enters the rest of the graph only as a scalar, so its gradient there is that scalar's
    gradient times the one computed here.
    """

    @staticmethod
    def forward(ctx: Any, states: Tensor, targets: Tensor, lm_head: nn.Module, size: int) -> Tensor:
        wanted = ctx.needs_input_grad[0]
        total = widened(states.new_zeros(()))
        gradients: list[Tensor] = []
        for chunk, target in _chunks(states, targets, size):
            with torch.set_grad_enabled(wanted):
                leaf = chunk.detach().requires_grad_(wanted)
                loss = _chunk_loss(leaf, target, lm_head)
            if wanted:
                gradients += torch.autograd.grad(loss, leaf)
            total += loss.detach()
        if wanted:
            ctx.save_for_backward(torch.cat(gradients))
        return total

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> tuple[Tensor, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * outputs[0].to(gradient.dtype), None, None, None
