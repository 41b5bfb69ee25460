"""SIGINT and SIGTERM: the first asks for save-and-stop, the second ends the process now."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from types import FrameType

FORCED_EXIT_CODE = 130


class StopSignals:
    """Counts stop signals; SIGHUP is ignored, so that a closed terminal ends nothing."""

    def __init__(self, on_forced: Callable[[], None] = lambda: None) -> None:
        self.count = 0
        self._on_forced = on_forced

    def install(self) -> None:
        """Take over the process's signal handlers."""
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        if self.count > 1:
            self._on_forced()
            os._exit(FORCED_EXIT_CODE)
