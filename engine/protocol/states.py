"""The states of a run."""

from __future__ import annotations

from enum import Enum


class RunState(Enum):
    """A state in the life of a run."""

    STARTING = "starting"
    """The engine process loads the model and the data."""
    RUNNING = "running"
    PAUSED = "paused"
    EVALUATING = "evaluating"
    SAVING = "saving"
    ROLLING_BACK = "rolling back"
    STOPPING = "stopping"
    """The engine writes the last checkpoint after it accepted a stop."""
    FINISHED = "finished"
    """The run trained all planned steps, and its last state is on disk."""
    STOPPED = "stopped"
    """The run ended early, on request or by early stopping, with a checkpoint unless the stop was
    asked to write none; it can be resumed."""
    HALTED = "halted"
    """The guard halted training; the engine waits for a resume, rollback, recovery or stop."""
    FAILED = "failed"
    """The engine ended with an error."""
    UNSAVED = "unsaved"
    """The run has ended, and its last state could not be saved; earlier checkpoints are there."""
    LOST = "lost"
    """The engine process ended without a `RunEnded` event."""

    @property
    def ended(self) -> bool:
        """Whether no engine process works on the run any more."""
        return self in _ENDED

    @property
    def held(self) -> bool:
        """Whether training waits for a command, paused or halted."""
        return self in {RunState.PAUSED, RunState.HALTED}

    @property
    def busy(self) -> bool:
        """Whether the engine is in an operation after which it trains or pauses again."""
        return self in {RunState.EVALUATING, RunState.SAVING, RunState.ROLLING_BACK}


_ENDED = frozenset(
    {RunState.FINISHED, RunState.STOPPED, RunState.FAILED, RunState.UNSAVED, RunState.LOST}
)
