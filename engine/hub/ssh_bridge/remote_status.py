"""How the run is, for a viewer far away: the hub's heartbeat, or one made from the run's folder."""

from __future__ import annotations

import time
from pathlib import Path

from ...protocol.codec import DecodeError, decode_record, peek_seq
from ...protocol.events import StepFinished
from ...protocol.requests import Beat
from ...protocol.states import RunState
from ...run.files import last_lines
from ...run.process_marks import read_engine
from ...run.run_dir import RunDirectory
from ...run.run_index import read_ends, read_tail, run_state

_LOG_TAIL_LINES = 20
_NEWEST = 10


class JournalHead:
    """The end of the journal, looked at only when it has moved."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._size = -1
        self._tail: list[bytes] = []
        self._told = 0
        self.seq = 0
        """Of the newest record; 0 when there is none."""

    def look(self) -> None:
        """Bring `seq` up to date."""
        try:
            size = self._path.stat().st_size
        except FileNotFoundError:
            return
        if size != self._size:
            self._size = size
            self._tail = read_tail(self._path)[0]
            if self._tail:
                self.seq = peek_seq(self._tail[-1])

    def newest_steps(self) -> list[bytes]:
        """The newest finished steps that were not told yet, a few."""
        steps = [payload for payload in self._tail[-4 * _NEWEST :] if self._is_new_step(payload)]
        self._told = self.seq
        return steps[-_NEWEST:]

    def _is_new_step(self, payload: bytes) -> bool:
        try:
            record = decode_record(payload)
        except DecodeError:
            return False
        return (
            record is not None
            and record.seq > self._told
            and isinstance(record.event, StepFinished)
        )


def beat_from_disk(run: RunDirectory, last_seq: int) -> Beat:
    """The heartbeat of a run that no hub serves now."""
    engine = read_engine(run)
    state = run_state(run, read_ends(run.journal))
    lost = state is RunState.LOST
    return Beat(
        time=time.time(),
        last_seq=last_seq,
        engine_alive=engine is not None and engine.alive,
        engine_pid=engine.pid if engine else None,
        state=state,
        engine_log_tail=last_lines(run.engine_log, _LOG_TAIL_LINES) if lost else [],
    )
