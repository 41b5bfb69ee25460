"""Next-token cross entropy and token log-probabilities, computed in chunks of logits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from ..config.memory.limits import chunk_tokens_for, fused_chunk_tokens_for, whole_tiles
from .fused_rows import RowKernels, is_plain
from .numerics import in_weight_dtype, widened
from .sliced import sliced_log_probs, sliced_of

IGNORED = -100
"""Label of a position without a next-token target."""


def selected_cross_entropy(
    hidden: Tensor,
    labels: Tensor,
    lm_head: nn.Module,
    chunk_tokens: int | None = None,
    smoothing: float = 0.0,
    focal: float = 0.0,
    weights: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Sum the next-token loss over the positions that have a label.

    The head runs only on these positions, one chunk of tokens at a time. With a frozen head the
    gradient of each chunk is computed immediately, so logits are computed once; with a trainable
    head they are recomputed in the backward pass. A `SlicedHead` is applied one slice of the
    vocabulary at a time instead.

    Args:
        hidden: Last hidden states [B, T, H]; position t predicts token t + 1.
        labels: [B, T] token ids, -100 = no loss.
        lm_head: Maps [n, H] to logits [n, V].
        chunk_tokens: Tokens per chunk; None takes as many as have `LOGITS_AT_ONCE` logits.
        smoothing: Share of the target that is spread evenly over the vocabulary; not used with a
            `SlicedHead`.
        focal: γ of the focal loss, (1 − p)^γ · (−log p); 0 is the plain loss.
        weights: [B, T] factor on the loss of each label; [B, 1] weighs whole sequences; None is 1.

    Returns:
        The loss sum (fp32 scalar) and its number of tokens (int64 scalar), each counted once
        whatever its weight. Without any label the sum is 0 and still belongs to the graph of
        `hidden`.

    Source: Lin et al. 2017 (focal loss).
    """
    states, targets, index = _labelled(hidden, labels)
    count = (targets != IGNORED).sum()
    if len(targets) == 0:
        return widened(states).sum(), count
    if sliced_of(lm_head) is not None:
        losses = -sliced_log_probs(states, targets, lm_head)
        return _shaped(losses, focal, _selected(weights, labels, index)).sum(), count
    size = chunk_tokens or chunk_tokens_for(_vocabulary(lm_head))
    form = _Form(smoothing, focal, _selected(weights, labels, index))
    if any(parameter.requires_grad for parameter in lm_head.parameters()):
        return _recomputed(states, targets, lm_head, size, form), count
    at_once: Callable[..., Tensor] = _FrozenHead.apply
    return at_once(states, targets, lm_head, size, form, None), count


def static_cross_entropy(
    hidden: Tensor,
    labels: Tensor,
    lm_head: nn.Module,
    smoothing: float = 0.0,
    focal: float = 0.0,
    rows: RowKernels | None = None,
) -> Tensor:
    """Sum the next-token loss as `selected_cross_entropy` does, with shapes independent of labels.

    The head runs on every position, so the labels need not be known beforehand: the host does not
    wait for the device, and a captured graph does not depend on the data.

    Args:
        hidden: Last hidden states [B, T, H]; position t predicts token t + 1.
        labels: [B, T] token ids, -100 = no loss.
        lm_head: Maps [n, H] to logits [n, V].
        smoothing: As in `selected_cross_entropy`.
        focal: As in `selected_cross_entropy`.
        rows: Kernels for the chunks of a frozen head that is a plain linear layer; None computes
            them by autograd.

    Returns:
        The loss sum (fp32 scalar); without any label it is 0 and still in the graph of `hidden`.
    """
    if sliced_of(lm_head) is not None:
        if not focal:
            return -static_log_probs(hidden, labels, lm_head)[0].sum()
        return _shaped(-_static_token_log_probs(hidden, labels, lm_head), focal, None).sum()
    states, targets = _shifted(hidden, labels)
    form = _Form(smoothing, focal)
    size, rows = _static_chunks(lm_head, rows)
    if any(parameter.requires_grad for parameter in lm_head.parameters()):
        return _recomputed(states, targets, lm_head, size, form)
    at_once: Callable[..., Tensor] = _FrozenHead.apply
    return at_once(states, targets, lm_head, size, form, rows)


def _static_chunks(lm_head: nn.Module, rows: RowKernels | None) -> tuple[int, RowKernels | None]:
    """Return the tokens of a chunk of static shape, and the kernels if they fit the head."""
    vocabulary = _vocabulary(lm_head)
    if rows is None or not is_plain(lm_head):
        return whole_tiles(chunk_tokens_for(vocabulary)), None
    return fused_chunk_tokens_for(vocabulary), rows


def static_log_probs(
    hidden: Tensor,
    labels: Tensor,
    lm_head: nn.Module,
    context: Tensor | None = None,
    rows: RowKernels | None = None,
) -> tuple[Tensor, Tensor]:
    """Sum log p(label) over each sequence, with shapes independent of the labels.

    Args:
        hidden: Last hidden states [B, T, H]; position t predicts token t + 1.
        labels: [B, T] token ids, -100 = not counted.
        lm_head: Maps [n, H] to logits [n, V].
        context: [B, T] token ids that are summed separately, where `labels` has none; -100
            elsewhere.
        rows: As in `static_cross_entropy`.

    Returns:
        Sums [B] over the labels and over the context, in fp32; 0 for a sequence without any.
    """
    if context is not None:
        every = _static_token_log_probs(
            hidden, labels.where(labels != IGNORED, context), lm_head, rows
        ).view(labels.shape)
        own = F.pad(labels[:, 1:], (0, 1), value=IGNORED) != IGNORED
        return (every * own).sum(dim=1), (every * ~own).sum(dim=1)
    found = _static_token_log_probs(hidden, labels, lm_head, rows).view(labels.shape).sum(dim=1)
    return found, torch.zeros_like(found)


def _static_token_log_probs(
    hidden: Tensor, labels: Tensor, lm_head: nn.Module, rows: RowKernels | None = None
) -> Tensor:
    """Return log p of the label that each position predicts, [B × T]; 0 without one."""
    states, targets = _shifted(hidden, labels)
    if sliced_of(lm_head) is not None:
        every = sliced_log_probs(states, targets.clamp(min=0), lm_head)
        found = every.masked_fill(targets == IGNORED, 0.0)
    else:
        size, rows = _static_chunks(lm_head, rows)
        if any(parameter.requires_grad for parameter in lm_head.parameters()):
            found = _recomputed_log_probs(states, targets, lm_head, size)
        else:
            at_once: Callable[..., Tensor] = _FrozenHeadTokens.apply
            found = at_once(states, targets, lm_head, size, rows)
    return found


def _shifted(hidden: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return all states [B × T, H] and the label that each predicts [B × T], or `IGNORED`."""
    targets = F.pad(labels[:, 1:], (0, 1), value=IGNORED).reshape(-1)
    return hidden.reshape(-1, hidden.shape[-1]), targets


def token_log_probs(
    hidden: Tensor, labels: Tensor, lm_head: nn.Module, chunk_tokens: int | None = None
) -> tuple[Tensor, Tensor]:
    """Return log p(label) of every labelled position, for losses that weigh or compare tokens.

    For a preference loss, `(log_probs * mask).sum(1)` is the log-probability of a sequence, and
    divided by `mask.sum(1)` its mean per token. The gradient flows to `hidden` and to a trained
    head. The logits are computed one chunk of tokens (with a sliced head, one slice of the
    vocabulary) at a time, and again in the backward pass, so that at most one chunk is held.
    `HiddenStates` gives `hidden` and `lm_head_of` the head, also in lean mode.

    Args:
        hidden: Last hidden states [B, T, H]; position t predicts token t + 1.
        labels: [B, T] token ids, -100 = not counted.
        lm_head: Maps [n, H] to logits [n, V].
        chunk_tokens: Tokens per chunk; None takes as many as have `LOGITS_AT_ONCE` logits.

    Returns:
        Log-probabilities [B, T - 1] in fp32, 0 without a label, and the mask [B, T - 1] of the
        labelled positions. Column t belongs to the token at t + 1.
    """
    states, targets, index = _labelled(hidden, labels)
    mask = labels[:, 1:] != IGNORED
    found = widened(states).sum(1) * 0.0 if len(targets) == 0 else None
    if found is None and sliced_of(lm_head) is not None:
        found = sliced_log_probs(states, targets, lm_head)
    if found is None:
        size = chunk_tokens or chunk_tokens_for(_vocabulary(lm_head))
        found = _recomputed_log_probs(states, targets, lm_head, size)
    flat = found.new_zeros(mask.numel()).index_copy(0, index, found)
    return flat.view(mask.shape), mask


def _labelled(hidden: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the n states [n, H] that predict a label, these labels [n], and their places [n].

    A place is an index into the B × (T - 1) positions that predict a token.
    """
    targets = labels[:, 1:].reshape(-1)
    index = (targets != IGNORED).nonzero().squeeze(1)
    states = hidden[:, :-1].reshape(-1, hidden.shape[-1]).index_select(0, index)
    return states, targets.index_select(0, index), index


def _vocabulary(lm_head: nn.Module) -> int:
    sizes = (getattr(m, "out_features", None) for m in lm_head.modules())
    return int(next(size for size in sizes if size is not None))


@dataclass(frozen=True)
class _Form:
    """How the loss of a token is computed: label smoothing, focal exponent and weight."""

    smoothing: float
    focal: float
    weights: Tensor | None = None
    """Factor on the loss of each token, [n]; None is 1."""

    @property
    def plain(self) -> bool:
        """Whether the losses can be summed as they are."""
        return not self.focal and self.weights is None

    def at(self, start: int, size: int) -> _Form:
        """Return the form of a chunk of tokens."""
        if self.weights is None:
            return self
        return replace(self, weights=self.weights[start : start + size])


def _selected(weights: Tensor | None, labels: Tensor, index: Tensor) -> Tensor | None:
    """Return the weights of the labels at these places [n], from weights [B, T] or [B, 1]."""
    if weights is None:
        return None
    return weights.expand(labels.shape)[:, 1:].reshape(-1).index_select(0, index)


def _shaped(losses: Tensor, focal: float, weights: Tensor | None) -> Tensor:
    """Return the losses [n] of tokens, multiplied by the focal factor and the weights."""
    if focal:
        # 1 − p is at least eps, which keeps the gradient finite for exponents below 1.
        losses = (-torch.expm1(-losses)).clamp_min(torch.finfo(losses.dtype).eps) ** focal * losses
    return losses if weights is None else losses * weights.to(losses.dtype)


def _chunk_loss(states: Tensor, targets: Tensor, lm_head: nn.Module, form: _Form) -> Tensor:
    logits = widened(lm_head(in_weight_dtype(states, lm_head)))
    if form.plain:
        return F.cross_entropy(logits, targets, reduction="sum", label_smoothing=form.smoothing)
    losses = F.cross_entropy(logits, targets, reduction="none", label_smoothing=form.smoothing)
    return _shaped(losses, form.focal, form.weights).sum()


def _chunk_log_probs(states: Tensor, targets: Tensor, lm_head: nn.Module) -> Tensor:
    logits = widened(lm_head(in_weight_dtype(states, lm_head)))
    return -F.cross_entropy(logits, targets, reduction="none")


def _chunks(states: Tensor, targets: Tensor, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    for start in range(0, len(targets), size):
        yield states[start : start + size], targets[start : start + size]


def _recomputed(
    states: Tensor, targets: Tensor, lm_head: nn.Module, size: int, form: _Form
) -> Tensor:
    losses = [
        checkpoint(_chunk_loss, part, target, lm_head, form.at(n * size, size), use_reentrant=False)
        for n, (part, target) in enumerate(_chunks(states, targets, size))
    ]
    return torch.stack(losses).sum()


def _recomputed_log_probs(states: Tensor, targets: Tensor, lm_head: nn.Module, size: int) -> Tensor:
    parts = _chunks(states, targets, size)
    return torch.cat(
        [checkpoint(_chunk_log_probs, s, t, lm_head, use_reentrant=False) for s, t in parts]
    )


def _fused_chunk(
    states: Tensor, targets: Tensor, lm_head: Any, rows: RowKernels, form: _Form, wanted: bool
) -> tuple[Tensor, Tensor | None]:
    """Return the loss of each token [n] and the gradient of their sum by the states [n, H].

    The logits of the chunk are computed once, and their gradient takes their place. The gradient is
    None unless it is wanted.
    """
    logits = lm_head(in_weight_dtype(states, lm_head))
    own, kept = targets.clamp(min=0), targets != IGNORED
    losses, log_sums = rows.losses(logits, own, form.smoothing)
    losses, factors = losses.where(kept, 0.0), kept.to(losses.dtype)
    if not form.plain:
        with torch.enable_grad():
            leaf = losses.requires_grad_()
            losses = _shaped(leaf, form.focal, form.weights)
            (slope,) = torch.autograd.grad(losses.sum(), leaf)
        losses, factors = losses.detach(), factors * slope
    if not wanted:
        return losses, None
    rows.gradient(logits, own, log_sums, factors, form.smoothing)
    return losses, (logits @ lm_head.weight).to(states.dtype)


def _chunk_by_autograd(
    states: Tensor,
    targets: Tensor,
    wanted: bool,
    function: Callable[[Tensor, Tensor], Tensor],
) -> tuple[Tensor, Tensor | None]:
    """Return what `function` does, and the gradient of its sum by the states if it is wanted."""
    with torch.set_grad_enabled(wanted):
        leaf = states.detach().requires_grad_(wanted)
        found = function(leaf, targets)
    gradient = torch.autograd.grad(found, leaf, torch.ones_like(found))[0] if wanted else None
    return found.detach(), gradient


def _over_chunks(
    ctx: Any,
    states: Tensor,
    targets: Tensor,
    size: int,
    compute: Callable[[int, Tensor, Tensor, bool], tuple[Tensor, Any]],
) -> list[Tensor]:
    """Return what `compute` finds for each chunk, and save the gradient of all states.

    Args:
        ctx: context of an autograd function whose first argument is `states`.
        states: [n, H].
        targets: [n].
        size: tokens of a chunk.
        compute: given the index of the first token of a chunk, its states, its targets, and whether
            a gradient is wanted, returns the result of the chunk and the gradient of its states.
    """
    wanted = ctx.needs_input_grad[0]
    found = [
        compute(number * size, chunk, target, wanted)
        for number, (chunk, target) in enumerate(_chunks(states, targets, size))
    ]
    if wanted:
        ctx.save_for_backward(torch.cat([gradient for _, gradient in found]))
    return [result for result, _ in found]


class _FrozenHead(torch.autograd.Function):
    """Loss sum whose gradient with respect to the states is computed in the forward pass.

    The loss enters the rest of the graph only as a scalar, so the backward pass multiplies the
    stored gradient by the gradient of this scalar.
    """

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        targets: Tensor,
        lm_head: nn.Module,
        size: int,
        form: _Form,
        rows: RowKernels | None,
    ) -> Tensor:
        def sum_of(first: int, chunk: Tensor, target: Tensor, wanted: bool) -> tuple[Tensor, Any]:
            own = form.at(first, size)
            if rows is None:
                function = partial(_chunk_loss, lm_head=lm_head, form=own)
                return _chunk_by_autograd(chunk, target, wanted, function)
            losses, gradient = _fused_chunk(chunk, target, lm_head, rows, own, wanted)
            return losses.sum(), gradient

        total = widened(states.new_zeros(()))
        for loss in _over_chunks(ctx, states, targets, size, sum_of):
            total += loss
        return total

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> tuple[Tensor, None, None, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * outputs[0].to(gradient.dtype), None, None, None, None, None


class _FrozenHeadTokens(torch.autograd.Function):
    """Log-probability of every token; the gradient of its state is computed in the forward pass.

    The log-probability of a token depends only on its own state, so the backward pass multiplies
    the stored gradient by the gradient of the token's log-probability.
    """

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        targets: Tensor,
        lm_head: nn.Module,
        size: int,
        rows: RowKernels | None,
    ) -> Tensor:
        plain = _Form(smoothing=0.0, focal=0.0)

        def each_of(_: int, chunk: Tensor, target: Tensor, wanted: bool) -> tuple[Tensor, Any]:
            if rows is None:
                function = partial(_chunk_log_probs, lm_head=lm_head)
                return _chunk_by_autograd(chunk, target, wanted, function)
            losses, gradient = _fused_chunk(chunk, target, lm_head, rows, plain, wanted)
            return -losses, None if gradient is None else -gradient

        return torch.cat(_over_chunks(ctx, states, targets, size, each_of))

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> tuple[Tensor, None, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return (gradient * outputs[0].unsqueeze(1)).to(gradient.dtype), None, None, None, None
