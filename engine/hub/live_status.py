"""The state of a run as its journal and its engine process tell it."""

from __future__ import annotations

from ..protocol.codec import DecodeError, decode_record
from ..protocol.events import RunEnded, RunStarted, StateChanged
from ..protocol.states import RunState
from ..run.process_marks import EngineMark

_TELLING = tuple(f"{kind}".encode() for kind in ("RunStarted", "StateChanged", "RunEnded"))


class LiveStatus:
    """Follows a run; fed with encoded records in order and with what is known of the engine."""

    def __init__(self) -> None:
        self.incarnation = 0
        """Of the newest engine start in the journal."""
        self.engine_pid: int | None = None
        self.engine_alive = False
        self._told = RunState.STARTING
        self._expected = 0
        """Incarnation of the newest engine process, from its mark."""

    def observe(self, payload: bytes) -> None:
        """Take a record in; only those about the run's life are decoded."""
        if not any(name in payload for name in _TELLING):
            return
        try:
            record = decode_record(payload)
        except DecodeError:
            return
        if record is None:
            return
        match record.event:
            case RunStarted(incarnation=incarnation):
                self.incarnation, self._told = incarnation, RunState.STARTING
            case StateChanged(state=state) | RunEnded(state=state):
                self._told = state

    def look(self, mark: EngineMark | None, alive: bool) -> None:
        """Note what is known of the engine process now."""
        self.engine_alive = alive
        self.engine_pid = mark.pid if mark is not None else None
        self._expected = mark.incarnation if mark is not None else 0

    @property
    def state(self) -> RunState:
        """What a viewer should show."""
        if self._expected > self.incarnation:
            return RunState.STARTING if self.engine_alive else RunState.LOST
        if not self.engine_alive and self._expected and not self._told.ended:
            return RunState.LOST
        return self._told

    @property
    def silent_end(self) -> bool:
        """The engine is gone and left no word."""
        return self.state is RunState.LOST
