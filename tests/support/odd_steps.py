"""Steps whose loss is out of the ordinary, and what a run has told of them."""

from __future__ import annotations

from typing import Any
from unittest import mock

import msgspec

from .training import Played

_OF_THE_CLOCK = {
    *("step_s", "data_s", "compute_s", "optimizer_s", "tokens_per_s", "samples_per_s"),
    *("mem_total_bytes", "rss_bytes", "skew_s", "seconds", "size_bytes", "mem_allocated_bytes"),
    *("mem_reserved_bytes", "gpu_util", "gpu_temp_c", "gpu_power_w", "pcie_bytes_per_s", "rank_s"),
    "usage",
}


def told(run: Played) -> list[Any]:
    """Every record but for what the clock says."""
    found = []
    for record in run.records:
        event = msgspec.to_builtins(record.event)
        kept = {key: value for key, value in event.items() if key not in _OF_THE_CLOCK}
        # As text, because a NaN is not equal to itself.
        found.append((record.step, record.timeline, type(record.event).__name__, repr(kept)))
    return [one for one in found if one[2] not in ("RunStarted", "ProgressMade")]


def odd(trainer: type, step: int, factor: float, micro_batches: int = 2) -> Any:
    """A context in which the loss of one step is multiplied, the first time it is trained."""
    compute_loss: Any = vars(trainer)["compute_loss"]
    seen: list[int] = []

    def changed(self: Any, *args: Any, **kwargs: Any) -> Any:
        loss = compute_loss(self, *args, **kwargs)
        seen.append(self.state.global_step + 1)
        first = seen.count(step) <= micro_batches
        return loss * factor if seen[-1] == step and first else loss

    return mock.patch.object(trainer, "compute_loss", changed)
