"""The memory in use after a step, as app, reports and log lines show it."""

from __future__ import annotations

from .events import StepFinished


def memory_in_use(step: StepFinished) -> int | None:
    """Return the reserved bytes of the accelerator, or those of the process; None if unknown."""
    if step.mem_allocated_bytes is None:
        return step.rss_bytes
    return step.mem_reserved_bytes or step.mem_allocated_bytes
