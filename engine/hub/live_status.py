"""The state of a run, kept up to date from new journal records and from its engine process."""

from __future__ import annotations

from collections.abc import Mapping

from ..protocol.codec import decode_readable
from ..protocol.events import AnomalyRaised, RunStarted
from ..protocol.states import RunState
from ..run.run_status import EngineStatus, LifecycleStatus

_DECODED = (b"RunStarted", b"StateChanged", b"RunEnded", b"AnomalyRaised")


class LiveStatus:
    """The state of a run and its engine process, both as of the last update."""

    def __init__(self) -> None:
        self.engine = EngineStatus()
        self._lifecycle = LifecycleStatus()
        self.refused: Mapping[str, str] = {}
        """Commands that the trainer cannot carry out, verb to reason."""
        self.anomalies: dict[str, None] = {}
        """The ids of the anomalies, in the order in which they were raised."""

    @property
    def incarnation(self) -> int:
        """The number of the newest engine start in the journal; 0 before the first one."""
        return self._lifecycle.incarnation

    def add(self, payload: bytes) -> None:
        """Update the state from the next encoded record.

        To save time, only starts, changes of state, ends and anomalies are decoded.
        """
        if not any(name in payload for name in _DECODED):
            return
        record = decode_readable(payload)
        if record is None:
            return
        self._lifecycle.add(record.event, record.time, record.seq)
        if isinstance(record.event, RunStarted):
            self.refused = record.event.refused
        if isinstance(record.event, AnomalyRaised):
            self.anomalies[record.event.id] = None

    def update_engine(self, engine: EngineStatus) -> None:
        """Note the engine process as it is now."""
        self.engine = engine

    @property
    def state(self) -> RunState:
        """The state to show to viewers: as journaled, or lost if the engine process is gone."""
        return self._lifecycle.state(self.engine)
