"""Release of GPU memory during a pause, agreed by all ranks; no torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ..distributed.agreement import Agreement, attempt


class MemoryTaken(Exception):
    """Another process holds the GPU memory, so all of it stays released."""


class MemoryOwner(Protocol):
    """The part of a trainer that can give its device memory away for a while."""

    def release_memory(self) -> int:
        """Free the memory of this rank's device and return the number of bytes freed."""

    def reclaim_memory(self) -> None:
        """Take the memory of this rank's device back.

        Raises:
            Exception: another process holds it; the memory stays released.
        """


class MemoryRelease:
    """Releases the device memory of all ranks and takes it back, on all of them or on none."""

    def __init__(
        self, owner: MemoryOwner, agreement: Agreement, log: Callable[[str, str], None]
    ) -> None:
        self._owner = owner
        self._agreement = agreement
        self._log = log
        self._released = False

    def release(self) -> None:
        """Free the device memory of all ranks, unless it is free already, and log how much."""
        if self._released:
            return
        self._released = True
        freed = self._owner.release_memory()
        text = f"{freed / 2**30:.2f} GiB of GPU memory released until training continues"
        self._log("info", text if freed else "no GPU memory was released")

    def reclaim(self) -> None:
        """Take the memory back if it was released.

        Raises:
            MemoryTaken: a rank could not have its memory back.
        """
        if not self._released:
            return
        if errors := self._agreement.errors(attempt(self._owner.reclaim_memory)):
            self._owner.release_memory()
            raise MemoryTaken(
                f"the GPU's memory cannot be taken back: {'; '.join(errors)}; "
                "end the other processes that use it, then try again"
            )
        self._released = False
