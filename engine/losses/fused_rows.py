"""Row losses of a chunk of logits and their gradient, which takes the place of the logits.

The chunk stays in the precision of the head: its rows are widened to fp32 while they are read, so
that 2 bytes per logit are held in half precision. Compiled, each function is one kernel that reads
the chunk, and `gradient_in_place` also writes it. The results differ from those of
`F.cross_entropy` on widened logits only by the order of sums.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .numerics import widened


def row_losses(logits: Tensor, targets: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """Return the cross entropy of each row and the logarithm of its sum of exponentials, [n] fp32.

    Args:
        logits: [n, V].
        targets: [n] token ids.
        smoothing: Share of the target that is spread evenly over the vocabulary.
    """
    wide = widened(logits)
    log_sums = wide.logsumexp(1)
    losses = log_sums - wide.gather(1, targets.unsqueeze(1)).squeeze(1)
    if smoothing:
        losses = (1 - smoothing) * losses + smoothing * (log_sums - wide.mean(1))
    return losses, log_sums


def gradient_in_place(
    logits: Tensor, targets: Tensor, log_sums: Tensor, factors: Tensor, smoothing: float
) -> None:
    """Overwrite logits [n, V] with the gradient of `(row_losses * factors).sum()`.

    Args:
        logits: [n, V].
        targets: [n] token ids.
        log_sums: [n], those of `row_losses`.
        factors: [n].
        smoothing: As in `row_losses`.
    """
    width = logits.shape[1]
    right = torch.arange(width, device=logits.device) == targets.unsqueeze(1)
    wanted = right.to(log_sums.dtype) * (1 - smoothing) + smoothing / width
    share = (widened(logits) - log_sums.unsqueeze(1)).exp() - wanted
    logits.copy_(share * factors.unsqueeze(1))


@dataclass(frozen=True)
class RowKernels:
    """The functions of this module, plain or compiled."""

    losses: Callable[[Tensor, Tensor, float], tuple[Tensor, Tensor]] = row_losses
    gradient: Callable[[Tensor, Tensor, Tensor, Tensor, float], None] = gradient_in_place


def is_plain(lm_head: nn.Module) -> bool:
    """Whether a head is a frozen linear layer, whose gradient is a product with its matrix."""
    return (
        type(lm_head) is nn.Linear
        and "forward" not in vars(lm_head)
        and lm_head.weight.is_floating_point()
        and not any(parameter.requires_grad for parameter in lm_head.parameters())
    )
