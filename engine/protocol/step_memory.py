"""The memory in use after a step, as app, reports and log lines show it."""

from __future__ import annotations

from .events import StepFinished


def memory_in_use(step: StepFinished) -> int | None:
    """Return the memory in use after a step, in bytes; None if it is not known.

    On an accelerator it is what the allocator has reserved, or has allocated if only that is
    known; on the CPU it is the resident memory of the process.
    """
    if step.mem_allocated_bytes is None:
        return step.rss_bytes
    return step.mem_reserved_bytes or step.mem_allocated_bytes
