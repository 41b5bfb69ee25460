"""The states of a run, as told to viewers."""

from __future__ import annotations

from enum import Enum


class RunState(Enum):
    """Where a run is in its life."""

    STARTING = "starting"
    """The engine process is up; model and data are being loaded."""
    RUNNING = "running"
    PAUSED = "paused"
    EVALUATING = "evaluating"
    SAVING = "saving"
    ROLLING_BACK = "rolling back"
    STOPPING = "stopping"
    """A stop was accepted; the last checkpoint is being written."""
    FINISHED = "finished"
    """All planned steps were trained."""
    STOPPED = "stopped"
    """Ended early on request; can be resumed."""
    HALTED = "halted"
    """A guard stopped training; the process waits for a rollback or a stop."""
    FAILED = "failed"
    """The engine ended with an error."""
    LOST = "lost"
    """The engine process is gone and left no word why."""

    @property
    def ended(self) -> bool:
        """No engine process works on the run any more."""
        return self in _ENDED

    @property
    def busy(self) -> bool:
        """The engine is inside an operation that returns to training or pause by itself."""
        return self in {RunState.EVALUATING, RunState.SAVING, RunState.ROLLING_BACK}


_ENDED = frozenset({RunState.FINISHED, RunState.STOPPED, RunState.FAILED, RunState.LOST})
