"""The counters of a checkpoint: step, data position, settings and the state of monitoring."""

from __future__ import annotations

from typing import Any

import msgspec

from ...data.batches.mixing import MixChanges
from ...protocol.settings import RunSettings


class Counters(msgspec.Struct, frozen=True, kw_only=True):
    """The plain values of a checkpoint; the names of the fields are part of the file format."""

    step: int
    """Number of finished optimizer steps."""
    position: int
    """Number of micro-batches that each rank has consumed."""
    desired: RunSettings
    """The settings in force."""
    mix: MixChanges = ()
    """Changes of the source weights that applied to the steps so far."""
    watch: dict[str, Any] = {}
    """State of the anomaly detector, the guard and the meters."""
    owes_evaluation: bool = False
    """Whether the evaluation of this step was interrupted and has to run after a resume."""
