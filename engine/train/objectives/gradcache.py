"""GradCache: a contrastive batch as large as the step, in the memory of one micro-batch.

The first pass embeds the micro-batches of the step without an autograd graph and keeps the states
of the random generators. The loss over all vectors, on all ranks, gives the gradient with respect
to each vector. The second pass is the usual training loop: it runs each micro-batch again with the
same random numbers and backpropagates these gradients through it. The sum over the micro-batches is
the exact gradient of the whole step. If graphs are small, as with activation checkpointing, the
first micro-batches keep theirs and need no second pass.

Source: Gao et al., "Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup", 2021.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import reduce
from itertools import accumulate
from operator import add
from typing import Any

import torch
from torch import Tensor

from ...config.memory.limits import KEPT_GRAPH_BYTES, graph_elements_per_token
from ...losses.contrastive import ContrastiveResult
from .contrastive import PairObjective, PairTexts, join


@dataclass(frozen=True)
class Randomness:
    """The state of the generators that a forward pass draws from."""

    device: torch.device
    cpu: Tensor
    cuda: Tensor | None

    @classmethod
    def of(cls, device: torch.device) -> Randomness:
        """Capture the current state of the generators."""
        cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
        return cls(device, torch.get_rng_state(), cuda)

    @contextmanager
    def again(self) -> Iterator[None]:
        """Draw the captured numbers again in the block, and restore the generators after it."""
        with torch.random.fork_rng(devices=[self.device] if self.cuda is not None else []):
            torch.set_rng_state(self.cpu)
            if self.cuda is not None:
                torch.cuda.set_rng_state(self.cuda, self.device)
            yield


@dataclass(frozen=True)
class EmbeddedBatch:
    """A micro-batch as the first pass has embedded it."""

    randomness: Randomness
    texts: PairTexts
    """Pooled vectors without an autograd graph."""
    hidden: Tensor | None
    """Last hidden states in their graph; None if the graph was not kept."""


@dataclass(frozen=True)
class StepCache:
    """The results of the first pass that the second pass over a step needs."""

    randomness: list[Randomness]
    kept: dict[int, Tensor]
    """Hidden states with their graph, by micro-batch; removed when the second pass uses them."""
    gradients: list[Tensor]
    """Gradients of the scaled step loss with respect to each micro-batch's vectors, [rows, H]."""
    log_scale_gradient: Tensor | None
    """Gradient with respect to the logarithm of the learned temperature; None if not learned."""
    result: ContrastiveResult
    """The loss of this rank's anchors over all candidates, without an autograd graph."""
    scale: float
    """Factor from sums over anchors to shares of the step's loss."""

    def share(self, number: int, texts: PairTexts, log_scale: Tensor | None) -> Tensor:
        """Return a micro-batch's share of the loss, whose backward pass gives the cached gradients.

        Args:
            number: index of the micro-batch in the step.
            texts: the texts of the micro-batch from the second pass, with a graph.
            log_scale: parameter of the learned temperature; None if it is not learned.
        """
        parts = len(self.gradients)
        carrier = (texts.vectors * self.gradients[number]).sum()
        if log_scale is not None and self.log_scale_gradient is not None:
            carrier = carrier + log_scale * (self.log_scale_gradient / parts)
        return carrier - carrier.detach() + self.result.loss_sum * (self.scale / parts)


def graphs_kept(tokens: Sequence[int], bytes_per_token: int, at_most: int) -> int:
    """Return how many micro-batches keep their graph: the first, and more while memory allows.

    Args:
        tokens: tokens of each micro-batch, padding included.
        bytes_per_token: bytes of a graph per token.
        at_most: most graphs that the training loop can use; with 0 none is kept.
    """
    sizes = accumulate(count * bytes_per_token for count in tokens)
    return min(at_most, max(1, sum(size <= KEPT_GRAPH_BYTES for size in sizes)))


def graph_bytes_per_token(architecture: Any, element_size: int, *, whole_layers: int | None) -> int:
    """Return the approximate bytes per token that the autograd graph of a forward pass holds.

    Args:
        architecture: the text model's transformers configuration.
        element_size: bytes of an activation.
        whole_layers: number of layers that keep more than their input; None means all.
    """
    layers, hidden = int(architecture.num_hidden_layers), int(architecture.hidden_size)
    inner = int(getattr(architecture, "intermediate_size", None) or 4 * hidden)
    whole = layers if whole_layers is None else whole_layers
    return graph_elements_per_token(hidden, inner, layers, whole) * element_size


def first_pass(
    count: int,
    embed: Callable[[int], tuple[Tensor, PairTexts]],
    device: torch.device,
    may_go_on: Callable[[], bool],
    keep: int,
) -> list[EmbeddedBatch] | None:
    """Run the first pass: embed the micro-batches of a step; None if the step is dropped meanwhile.

    Args:
        count: number of micro-batches.
        embed: maps the index of a micro-batch to its hidden states and pooled texts.
        device: device whose generator the forward passes draw from.
        may_go_on: called before each micro-batch; False ends the pass.
        keep: number of micro-batches that keep their graph; the result does not depend on it.
    """
    seen = []
    for number in range(count):
        if not may_go_on():
            return None
        randomness = Randomness.of(device)
        with torch.set_grad_enabled(number < keep):
            hidden, texts = embed(number)
        bare = replace(texts, vectors=texts.vectors.detach())
        seen.append(EmbeddedBatch(randomness, bare, hidden if number < keep else None))
    return seen


def cache_step(seen: Sequence[EmbeddedBatch], objective: PairObjective, scale: float) -> StepCache:
    """Compute the loss of a step and its gradient with respect to every vector; a collective.

    Args:
        seen: this rank's micro-batches of the step, from the first pass.
        objective: computes the loss over the texts.
        scale: factor from sums over this rank's anchors to the loss that is optimized.
    """
    leaves = [replace(one.texts, vectors=one.texts.vectors.requires_grad_()) for one in seen]
    everyone, own = objective.spread(join(leaves))
    pool = everyone.vectors.detach().requires_grad_()
    log_scale = objective.temperature.log_scale
    results = []
    for block in objective.blocks(replace(everyone, vectors=pool), own):
        (block.loss_sum * scale).backward()  # type: ignore[no-untyped-call]  # of torch
        results.append(replace(block, loss_sum=block.loss_sum.detach()))
    everyone.vectors.backward(pool.grad)  # type: ignore[no-untyped-call]  # of torch
    log_scale_gradient = None
    if log_scale is not None:
        log_scale_gradient, log_scale.grad = log_scale.grad, None
    return StepCache(
        randomness=[one.randomness for one in seen],
        kept={n: one.hidden for n, one in enumerate(seen) if one.hidden is not None},
        gradients=[_gradient(leaf.vectors) for leaf in leaves],
        log_scale_gradient=log_scale_gradient,
        result=reduce(add, results),
        scale=scale,
    )


def _gradient(leaf: Tensor) -> Tensor:
    assert leaf.grad is not None, "every vector takes part in the join"
    return leaf.grad
