"""The interface of the exact training state: capture, write, read and restore it; no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from .counters import Counters

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

    from .training_state import Boundary


class ExactState(Protocol):
    """All state that training changes: capture it, write it, read it and restore it."""

    def mark(self, position: int) -> Boundary:
        """Return the state before a step that starts at this data position, to undo the step."""

    def return_to(self, boundary: Boundary) -> None:
        """Undo a step that was started but not applied."""

    def gathered(self) -> AbstractContextManager[None]:
        """Return a context in which rank 0 has what `save_shared` writes; all ranks enter it."""

    def save_shared(self, folder: Path, counters: Counters) -> None:
        """Write the part of the state that is equal on every rank; called on rank 0."""

    def save_own(self, folder: Path, rank: int) -> None:
        """Write the part of the state that belongs to one rank."""

    def stage(self, folder: Path, rank: int) -> Any:
        """Read and check a checkpoint for `apply`, without changing the live state.

        Raises:
            CheckpointError: a file cannot be read or does not fit.
        """

    def apply(self, staged: Any) -> Counters:
        """Restore the live state from what `stage` returned, and return its counters."""

    def fingerprint(self, counters: Counters) -> bytes:
        """Return a checksum of the state that should be equal on all ranks, which compare it."""
