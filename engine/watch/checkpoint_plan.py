"""How often a watched run writes checkpoints by itself, so that they stay cheap."""

from __future__ import annotations

from dataclasses import dataclass

_EVERY = 50
_BYTES_PER_STEP = 1_200_000
"""Bytes that may be written per step: at 300 MB/s, 2 % of a step of 0.2 s."""
_SHARE_OF_DISK = 0.5
_VALUES_PER_WEIGHT = 2
"""Values of the optimizer per weight, such as the two moments of Adam."""
_BESIDES_NEWEST = 2
"""Checkpoints kept besides the newest: the best one, and the newest one without an alert."""


@dataclass(frozen=True)
class CheckpointPlan:
    """When checkpoints are written without a command."""

    every: int
    """Steps between them; 0: only on command."""
    at_start: bool
    fact: str
    """The plan in words."""


def no_checkpoints(reason: str) -> CheckpointPlan:
    """Return the plan of a run that cannot write checkpoints, for a reason."""
    return CheckpointPlan(0, False, f"none: {reason}")


def plan_checkpoints(
    weight_bytes: int, weights: int, free_bytes: int | None, keep: int, asked: int | None
) -> CheckpointPlan:
    """Return the plan for the weights that are trained.

    Args:
        weight_bytes: bytes of the trained weights.
        weights: number of trained weights.
        free_bytes: free space of the disk; None if unknown.
        keep: newest checkpoints that are kept.
        asked: steps between checkpoints that the user asked for; None lets them be planned.
    """
    size = weight_bytes + _VALUES_PER_WEIGHT * 4 * weights
    most = keep + _BESIDES_NEWEST
    needed = most * size
    if asked is None and free_bytes is not None and needed > _SHARE_OF_DISK * free_bytes:
        text = (
            f"on command only: {most} of them, {size / 1e9:.3g} GB each, would take "
            f"{needed / 1e9:.3g} GB, more than half of the free disk"
        )
        return CheckpointPlan(0, False, text)
    every = max(_EVERY, -(-size // _BYTES_PER_STEP)) if asked is None else asked
    often = f"every {every} steps and " if every else ""
    each = f"about {size / 1e6:.3g} MB each, at most {most} kept"
    return CheckpointPlan(every, True, f"{often}before the first step; {each}")
