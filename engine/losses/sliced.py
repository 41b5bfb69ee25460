"""Log-probabilities and logits of an output head that is dequantized slice by slice.

The forward pass accumulates the log-normalizer over the slices of the vocabulary; the backward pass
visits them again. So neither the whole matrix nor all logits are ever in memory, and only one
number per token is kept between the passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from ..config.memory.limits import SLICE_LOGITS
from .numerics import widened


@dataclass(frozen=True)
class HeadSlice:
    """Consecutive rows of an output matrix, and their biases."""

    weight: Tensor
    """[v, H]"""
    bias: Tensor | None = None
    """[v]"""

    def logits(self, states: Tensor) -> Tensor:
        """Project states [n, H] to [n, v]."""
        return nn.functional.linear(states, self.weight, self.bias)


@runtime_checkable
class SlicedHead(Protocol):
    """An output matrix that is provided slice by slice, in the order of the vocabulary."""

    def slices(self) -> Iterator[HeadSlice]:
        """Yield the slices; each may be freed before the next one is made."""


@dataclass(frozen=True)
class _Shape:
    """Scaling and soft capping of logits after the projection: `cap · tanh(scale · x / cap)`."""

    scale: float
    cap: float | None

    def apply(self, logits: Tensor) -> Tensor:
        if self.scale != 1.0:
            logits = logits.mul_(self.scale)
        return logits if self.cap is None else logits.div_(self.cap).tanh_().mul_(self.cap)

    def back(self, gradient: Tensor, shaped: Tensor | None) -> Tensor:
        """Convert the gradient of the shaped logits to that of the raw ones, in place.

        `shaped` holds the shaped logits; it is needed only with a cap.
        """
        if self.cap is not None and shaped is not None:
            gradient = gradient.mul_(1 - (shaped / self.cap).square_())
        return gradient.mul_(self.scale) if self.scale != 1.0 else gradient


def sliced_of(lm_head: nn.Module) -> SlicedHead | None:
    """Return the sliced projection of a head, or None if the head is not sliced."""
    projection = getattr(lm_head, "projection", lm_head)
    return projection if isinstance(projection, SlicedHead) else None


def sliced_log_probs(states: Tensor, targets: Tensor, lm_head: nn.Module) -> Tensor:
    """Return log p(target) [n] in fp32 for states [n, H], with a gradient only for the states.

    Args:
        states: [n, H].
        targets: [n] token ids.
        lm_head: A `SlicedHead`, or a module with one as `projection`, which may also have `scale`
            and `cap` of the logits.
    """
    head = sliced_of(lm_head)
    assert head is not None, "the head is not sliced; the caller has to check that"
    shape = _Shape(getattr(lm_head, "scale", 1.0), getattr(lm_head, "cap", None))
    function: Callable[..., Tensor] = _SlicedLogProbs.apply
    return function(states, targets, head, shape)


def sliced_logits(states: Tensor, head: SlicedHead) -> Tensor:
    """Return the logits [..., V] of states [..., H]; the graph holds no part of the matrix."""
    function: Callable[..., Tensor] = _SlicedLogits.apply
    return function(states, head)


class _SlicedLogits(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, head: SlicedHead) -> Tensor:
        ctx.head = head
        parts = []
        for part in head.slices():
            parts.append(part.logits(states.to(part.weight.dtype)))
            del part  # before the next one is made
        return torch.cat(parts, dim=-1)

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> tuple[Tensor, None]:
        (by_logits,) = outputs
        total: Any = 0.0
        first = 0
        for part in ctx.head.slices():
            width = len(part.weight)
            share = by_logits[..., first : first + width]
            total = total + widened(share.to(part.weight.dtype) @ part.weight)
            first += width
            del part
        return total.to(by_logits.dtype), None


def _blocks(count: int, width: int) -> Iterator[slice]:
    size = max(1, SLICE_LOGITS // width)
    for start in range(0, count, size):
        yield slice(start, start + size)


def _placed(targets: Tensor, first: int, width: int) -> tuple[Tensor, Tensor]:
    """Return the row of each target in a slice of `width` rows from token `first`, [n, 1].

    The second value [n] says whether the target is in the slice; if not, the row has no meaning.
    """
    local = targets - first
    inside = (local >= 0) & (local < width)
    return local.clamp(0, width - 1).unsqueeze(1), inside


class _SlicedLogProbs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, states: Tensor, targets: Tensor, head: SlicedHead, shape: _Shape
    ) -> Tensor:
        normalizer = widened(states.new_full((len(states),), -torch.inf))
        chosen = torch.zeros_like(normalizer)
        first = 0
        for part in head.slices():
            width = len(part.weight)
            for rows in _blocks(len(states), width):
                logits = shape.apply(widened(part.logits(states[rows].to(part.weight.dtype))))
                place, inside = _placed(targets[rows], first, width)
                chosen[rows] += logits.gather(1, place).squeeze(1).where(inside, 0.0)
                total = logits.logsumexp(1)
                normalizer[rows] = torch.logaddexp(normalizer[rows], total)
            first += width
            del part  # before the next one is made
        ctx.save_for_backward(states, targets, normalizer)
        ctx.head, ctx.shape = head, shape
        return chosen - normalizer

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> tuple[Tensor, None, None, None]:
        states, targets, normalizer = ctx.saved_tensors
        by_token = outputs[0].to(normalizer.dtype).unsqueeze(1)
        gradient = torch.zeros_like(states, dtype=normalizer.dtype)
        first = 0
        for part in ctx.head.slices():
            width, dtype = len(part.weight), part.weight.dtype
            for rows in _blocks(len(states), width):
                place, inside = _placed(targets[rows], first, width)
                shaped = ctx.shape.apply(widened(part.logits(states[rows].to(dtype))))
                kept = shaped.clone() if ctx.shape.cap is not None else None
                share = shaped.sub_(normalizer[rows].unsqueeze(1)).exp_().mul_(-by_token[rows])
                share.scatter_add_(1, place, by_token[rows] * inside.unsqueeze(1))
                gradient[rows] += ctx.shape.back(share, kept).to(dtype) @ part.weight
            first += width
            del part
        return gradient.to(states.dtype), None, None, None
