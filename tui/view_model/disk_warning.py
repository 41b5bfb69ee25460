"""The warning about a full disk, from the heartbeat, which arrives even if the disk is full."""

from __future__ import annotations

from dataclasses import dataclass

from ..text import format as fmt
from .link import LinkView
from .run_view import RunView

JOURNAL_BYTES = 4 * 1024 * 1024
"""Free space below which the journal cannot be written."""
SPARE = 1.2
"""Free space that a checkpoint needs, as a multiple of its size.

A checkpoint is complete before the one it replaces is removed, and the journal keeps growing.
"""


@dataclass(frozen=True)
class DiskWarning:
    """A warning about disk space."""

    short: str
    """Two or three words, for the header."""
    words: str
    """Whole sentences, for the status panel."""
    advice: str
    """What to do; the id of an action in braces stands for its key."""
    full: bool
    """Whether nothing can be written, not even the journal."""


def trouble(run: RunView, link: LinkView) -> DiskWarning | None:
    """Return the warning about the free space on the disk of the run folder.

    None if there is enough or it is unknown, and if the run has ended or its engine is gone.
    """
    beat = link.beat
    if beat is None or beat.disk_free_bytes is None or run.state.ended or link.engine_gone:
        return None
    free = beat.disk_free_bytes
    sizes = [checkpoint.size_bytes for checkpoint in run.checkpoints]
    needed = max(sizes, default=0) * SPARE + JOURNAL_BYTES
    if free >= needed:
        return None
    has = f"{fmt.size(free)} free on the disk of the run folder"
    saving = f", a checkpoint needs {fmt.size(needed)}" if sizes else ""
    if free < JOURNAL_BYTES:
        words = f"Disk full: {has}{saving}. Training continues; new steps are kept in memory."
        advice = "Free disk space: the steps then appear; {checkpoint.save} writes a checkpoint."
        return DiskWarning("disk full", words, advice, full=True)
    words = f"Disk nearly full: {has}{saving}. The next checkpoint will fail; training continues."
    advice = "Free disk space; {checkpoint.save} writes a checkpoint."
    return DiskWarning("disk nearly full", words, advice, full=False)
