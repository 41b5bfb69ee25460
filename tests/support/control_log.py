"""A control journal in memory that can lose its disk and survives a restart of its hub."""

from __future__ import annotations

from fttui.engine.run.control_log import ControlEntry


class MemoryLog:
    """Keeps entries; `broken` makes appends fail."""

    def __init__(self) -> None:
        self.entries: list[ControlEntry] = []
        self.broken = False

    @property
    def last_seq(self) -> int:
        return self.entries[-1].seq if self.entries else 0

    def append(self, entry: ControlEntry) -> None:
        if self.broken:
            raise OSError(28, "No space left on device")
        self.entries.append(entry)
