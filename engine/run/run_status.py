"""The current state of a run: lifecycle events in its journal, checked against its engine process.

A dead process writes no event, and an event outlives its process, so neither is enough alone.
This module reads no file and inspects no process.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..protocol.events import AnyEvent, RunEnded, RunStarted, StateChanged, StepFinished
from ..protocol.states import RunState


@dataclass(frozen=True)
class EngineStatus:
    """The engine process that last worked on a run, and whether it still runs."""

    pid: int | None = None
    """The process id; None if no engine has worked on the run."""
    incarnation: int = 0
    """The number of this engine start in the life of the run; 0 if there was none."""
    started: float = 0.0
    """When the process started, in Unix seconds."""
    alive: bool = False
    """Whether the process still runs; assumed for a process that this machine cannot see."""
    host: str = ""
    """The other machine that the engine was started on; empty if that is this one."""
    after_seq: int | None = None
    """Sequence number of the newest record before this engine; None if it is not known."""

    never_started: bool = False
    """Whether the process that created the run ended before it started an engine."""

    @property
    def known(self) -> bool:
        """Whether any engine has worked on the run."""
        return self.pid is not None


def current_state(reported: RunState | None, *, engine_known: bool, engine_alive: bool) -> RunState:
    """Return the state of a run to show to a viewer.

    Args:
        reported: the last state the journal holds of the newest engine; None if it holds none.
        engine_known: whether any engine process is known to have worked on the run.
        engine_alive: whether the newest engine process still runs.
    """
    if reported is None:
        return RunState.STARTING if engine_alive or not engine_known else RunState.LOST
    return reported if engine_alive or reported.ended else RunState.LOST


class LifecycleStatus:
    """The status of a run as its journal reports it by starts, changes of state and ends."""

    def __init__(self) -> None:
        self.incarnation = 0
        """The number of the newest engine start; 0 before the first one."""
        self.reported: RunState | None = None
        """The state that the newest event reports; None before the first one."""
        self.exit_code: int | None = None
        """Exit code of the newest engine; None while it runs and if it reported no end."""
        self.error = ""
        """The error that ended the newest engine; empty if there was none."""
        self._ended_at = 0.0
        self._ended_seq = 0
        self._incarnation_known = True
        self._after_gap = False

    def add(self, event: AnyEvent, time: float, seq: int = 0) -> None:
        """Update the status with the next event of the journal; most kinds change nothing."""
        match event:
            case RunStarted(incarnation=incarnation):
                self.incarnation = max(self.incarnation, incarnation)
                self._incarnation_known = True
                self._report(RunState.STARTING)
            case StateChanged(state=state):
                self._report(state)
            case RunEnded(state=state):
                self._report(state)
                self.exit_code, self.error = event.exit_code, event.error
                self._ended_at, self._ended_seq = time, seq
            case StepFinished() if self._after_gap:
                self._report(RunState.RUNNING)
            case _:
                pass

    def _report(self, state: RunState) -> None:
        self.reported, self.exit_code, self.error = state, None, ""
        self._after_gap = False

    def skip_events(self) -> None:
        """Note that the events between the last one added and the next one are unknown.

        Until a later event reports a state, a finished step means that the run trains.
        """
        self._after_gap = True
        self._incarnation_known = False

    def state(self, engine: EngineStatus) -> RunState:
        """Return the state to show, from the last reported one and whether the engine lives."""
        reported = None if self._superseded_by(engine) else self.reported
        known = engine.known or engine.never_started
        return current_state(reported, engine_known=known, engine_alive=engine.alive)

    def _superseded_by(self, engine: EngineStatus) -> bool:
        """Whether the engine process started after every event that was added."""
        if not engine.known or self._incarnation_known:
            return engine.incarnation > self.incarnation
        ended = self.reported is not None and self.reported.ended
        if engine.after_seq is not None:
            return ended and self._ended_seq <= engine.after_seq
        return ended and engine.started > self._ended_at
