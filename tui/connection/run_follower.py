"""Follow a run of this machine by its files, without a hub, so that the run does not notice.

The notebook uses it, because sessions need an event loop of their own.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from fttui.engine.run.journal import FrameReader, read_past_damage
from fttui.engine.run.processes.heartbeat import beat_from_folder
from fttui.engine.run.run_dir import RunDirectory, runs_root
from fttui.engine.run.run_index import find_run

from ..view_model.app_state import AppState
from ..view_model.connection_port import Link
from ..view_model.reducer import apply_batch
from ..view_model.step_batch import decode_batch
from .history_reader import batches

_READ_BYTES = 1024 * 1024


class RunFollower:
    """Reads the files of a run; each refresh continues where the last one stopped."""

    def __init__(self, run: RunDirectory, clock: Callable[[], float] = time.time) -> None:
        """Follow a run; `clock` returns Unix seconds."""
        self.run = run
        self.state = AppState(run_id=run.id, read_only=True)
        self._clock = clock
        self._reader: FrameReader | None = None

    @classmethod
    def named(cls, name: str | None, runs_dir: str | None = None) -> RunFollower:
        """Return the follower of a run by its name, a beginning of it, or its folder.

        Without a name it is the newest run. `runs_dir` is the folder that holds the runs.

        Raises:
            NoSuchRun: no run or several runs match.
        """
        return cls(find_run(runs_root(runs_dir), name))

    @property
    def ended(self) -> bool:
        """Whether the run has ended, or no engine works on it any more."""
        return self.state.link.link is Link.ENDED or self.state.state.ended

    def refresh(self) -> AppState:
        """Read the new records of the journal, and return the state of the run as it is now."""
        reader = self._reader = self._reader or self._start()
        beat = beat_from_folder(self.run, self.state.run.seq, now=self._clock())
        # After the heartbeat, so that an ended run is read to its end.
        while payloads := reader.read_payloads(_READ_BYTES):
            self._apply(payloads)
        if not beat.engine_alive and self.run.journal.exists():
            later = read_past_damage(self.run.journal, reader.offset)
            self._apply([part for part in later if isinstance(part, bytes)])
        link = self.state.link.with_beat(beat, self._clock())
        link = replace(link, link=Link.LIVE if beat.engine_alive else Link.ENDED)
        self.state = replace(self.state, link=link)
        return self.state

    def _start(self) -> FrameReader:
        """Read a long journal with its old steps thinned; return the reader of the rest."""
        offset = 0
        if self.run.journal.exists():
            size_bytes = self.run.journal.stat().st_size
            for batch, read in batches(self.run.journal, size_bytes):
                self.state = replace(self.state, run=apply_batch(self.state.run, batch))
                offset = read.offset
        return FrameReader(self.run.journal, offset)

    def _apply(self, payloads: list[bytes]) -> None:
        run = apply_batch(self.state.run, decode_batch(payloads))
        self.state = replace(self.state, run=run)
