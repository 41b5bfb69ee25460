"""What the caller of `fttui.watch` may choose."""

from __future__ import annotations

from dataclasses import dataclass

from .script_run import MakeEventLog, plain_event_log


@dataclass(frozen=True)
class WatchOptions:
    """Name, checkpoints and memory of a watched run."""

    name: str | None = None
    """Name of the run; None is that of the trainer's arguments, else of the script."""
    checkpoint_every: int | None = None
    """Steps between checkpoints; None plans them by their size, 0 writes them on command only."""
    keep: int = 3
    """Newest checkpoints that are kept."""
    tape_mib: int = 512
    """Host memory for the batches since the oldest checkpoint, in MiB."""
    steps: int | None = None
    """Planned optimizer steps of a plain loop; None if unknown."""
    accumulate: int = 1
    """Batches per optimizer step of a plain loop."""
    make_event_log: MakeEventLog = plain_event_log
    """Makes the event log of the run."""
