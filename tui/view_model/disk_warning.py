"""What keeps a living run from saving, as its heartbeat tells it: that needs no room on a disk."""

from __future__ import annotations

from dataclasses import dataclass

from ..text import format as fmt
from .link import LinkView
from .run_view import RunView

JOURNAL_BYTES = 4 * 1024 * 1024
"""With less than this, not even the journal can be written."""
SPARE = 1.2
"""A checkpoint is complete before the one it replaces is removed, and the journal grows on."""


@dataclass(frozen=True)
class DiskWarning:
    """What is wrong, in two words and in full."""

    short: str
    words: str
    advice: str
    full: bool
    """Nothing at all can be written."""


def trouble(run: RunView, link: LinkView) -> DiskWarning | None:
    """None when there is room enough, or nobody can tell."""
    beat = link.beat
    if beat is None or beat.disk_free_bytes is None or run.state.ended or link.engine_gone:
        return None
    free = beat.disk_free_bytes
    sizes = [checkpoint.size_bytes for checkpoint in run.checkpoints]
    needed = max(sizes, default=0) * SPARE + JOURNAL_BYTES
    if free >= needed:
        return None
    has = f"{fmt.size(free)} free where the run folder is"
    saving = f", and saving needs {fmt.size(needed)}" if sizes else ""
    if free < JOURNAL_BYTES:
        words = f"Disk full: {has}{saving}. Training goes on; its steps wait in memory to be shown."
        advice = "Free space there: the steps come by themselves, {checkpoint.save} saves."
        return DiskWarning("disk full", words, advice, full=True)
    words = f"Disk nearly full: {has}{saving}. The next checkpoint fails, training goes on."
    return DiskWarning(
        "disk nearly full", words, "Free space there; {checkpoint.save} saves.", full=False
    )
