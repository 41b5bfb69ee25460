"""Stop notice: informs all ranks that one of them was asked to stop while it loads, and leaves.

Until the ranks have agreed for the first time, nothing has to be saved, and each of them may leave
by itself. A file of the run folder informs the others why it is gone.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from contextlib import suppress

import msgspec

from ...run.processes.identity import identity_of
from ...run.run_dir import RunDirectory

log = logging.getLogger(__name__)

_START = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_PORT")
_BY_SIGNAL = b" signal"
"""End of a notice of a rank that a signal stopped."""


class StopNotice:
    """A notice in the run folder that is valid only for the ranks of one launch."""

    def __init__(self, run: RunDirectory, start_id: bytes) -> None:
        self._run = run
        self._start_id = start_id

    @classmethod
    def of(cls, run: RunDirectory, environment: Mapping[str, str]) -> StopNotice | None:
        """Return the notice that the ranks of one launch share; None for a single rank."""
        if int(environment.get("WORLD_SIZE", "1")) == 1:
            return None
        launcher = os.getppid()
        values = [environment.get(name, "") for name in _START]
        return cls(run, msgspec.json.encode([launcher, identity_of(launcher), *values]))

    def give(self, *, by_signal: bool) -> None:
        """Write the notice that this rank stops; if that is impossible, log a warning."""
        if self.given():
            return
        try:
            self._run.write(self._run.stop_notice, self._start_id + _BY_SIGNAL * by_signal)
        except OSError as error:
            log.warning("the other ranks cannot be informed that this one stops: %s", error)

    def given(self) -> bool:
        """Return whether a rank of this launch has written the notice that it stops."""
        return self._read() in (self._start_id, self._start_id + _BY_SIGNAL)

    def by_signal(self) -> bool:
        """Return whether the rank that has written the notice was stopped by a signal."""
        return self._read() == self._start_id + _BY_SIGNAL

    def _read(self) -> bytes:
        with suppress(OSError), self._run.open() as folder:
            descriptor = folder.open_file(self._run.stop_notice.name, os.O_RDONLY)
            try:
                return os.pread(descriptor, len(self._start_id + _BY_SIGNAL) + 1, 0)
            finally:
                os.close(descriptor)
        return b""
