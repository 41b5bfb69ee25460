"""The share that a micro-batch has in the mean loss over an optimizer step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def mean_over_step(ce_sum: Tensor, trainer: Any, num_items_in_batch: Any) -> Tensor:
    """Return a micro-batch's share of the mean over the step, times the number of ranks."""
    known = 0 if num_items_in_batch is None else num_items_in_batch
    items = torch.as_tensor(known, device=ce_sum.device).clamp(min=1)
    share: Tensor = ce_sum / items * trainer.accelerator.num_processes
    return share
