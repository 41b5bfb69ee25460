"""The detector's view of a finished step: its record keys and the event fields they come from."""

from __future__ import annotations

from typing import Any

from ...protocol.events import StepFinished

STEP_FIELDS = {
    "loss": "loss",
    "grad_norm": "grad_norm",
    "lr": "lr",
    "epoch": "epoch",
    "tokens": "tokens",
    "rank_s": "rank_s",
    "rank_mem": "rank_mem_bytes",
    "tok_s": "tokens_per_s",
    "mem_allocated": "mem_allocated_bytes",
}
"""Record key → field of `StepFinished`. The keys are public: logs of other tools use them."""
PER_RANK = frozenset({"tok_s", "mem_allocated"})
"""Keys whose values differ between ranks, so that only rank 0 gives its own to the detector."""


def detector_record(event: StepFinished, step: int, *, leads: bool) -> dict[str, Any]:
    """Return the detector's record of a finished step.

    Args:
        event: the finished step; its loss parts and task metrics keep their names.
        step: number of the step.
        leads: whether this is rank 0; on other ranks the `PER_RANK` values are None.
    """
    known = {
        key: getattr(event, field) if leads or key not in PER_RANK else None
        for key, field in STEP_FIELDS.items()
    }
    return {**event.parts, **event.extra, "step": step, **known}
