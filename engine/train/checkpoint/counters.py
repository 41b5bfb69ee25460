"""The plain part of a checkpoint: step, data position, settings and the state of monitoring."""

from __future__ import annotations

from typing import Any

import msgspec

from ...protocol.settings import RunSettings


class Counters(msgspec.Struct, frozen=True, kw_only=True):
    """Everything of the training state that is not a tensor; field names are a file format."""

    step: int
    """Optimizer steps finished."""
    position: int
    """Micro-batches that each rank has consumed."""
    desired: RunSettings
    """The settings in force."""
    watch: dict[str, Any] = {}
    """State of detector, guard and meters."""
    owes_evaluation: bool = False
    """Whether the evaluation of this step was interrupted and has to be made up for."""
