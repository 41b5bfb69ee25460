"""The share that a micro-batch has in the mean loss over an optimizer step."""

from __future__ import annotations

import torch
from torch import Tensor


def mean_over_step(ce_sum: Tensor, num_items_in_batch: Tensor | int | None, ranks: int) -> Tensor:
    """Return a micro-batch's share of the mean over the step, times the number of ranks.

    Args:
        ce_sum: cross-entropy summed over the targets of the micro-batch, [].
        num_items_in_batch: number of targets of the step on all ranks, or the sum of their weights;
            None, like 0, counts as 1.
        ranks: number of ranks, over which DDP averages the gradients.
    """
    known = 0 if num_items_in_batch is None else num_items_in_batch
    items = torch.as_tensor(known, device=ce_sum.device)
    share: Tensor = ce_sum / torch.where(items == 0, 1, items) * ranks
    return share
