"""Stop signals: the first SIGINT or SIGTERM saves a checkpoint and stops, the next stops at once.

What was not saved is then lost.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType

from ..run.processes.held_signals import STOP_SIGNALS

FORCED_EXIT_CODE = 130
_ECHO_S = 1.0
"""Seconds in which a second signal counts as a copy of the first.

A signal to a whole process group reaches a rank twice: directly, and through torchrun, which
forwards its signals.
"""


class StopSignals:
    """Counts stop requests; SIGHUP is ignored, so that closing the terminal ends no run."""

    def __init__(
        self,
        on_forced: Callable[[], None] = lambda: None,
        *,
        launched: bool | None = None,
        now: Callable[[], float] = time.monotonic,
        leave: Callable[[int], None] = os._exit,
    ) -> None:
        self.count = 0
        self._on_forced = on_forced
        self._forced_code = FORCED_EXIT_CODE
        self._on_receipt: Callable[[bool], None] | None = None
        self._poked = False
        launched = "TORCHELASTIC_RUN_ID" in os.environ if launched is None else launched
        self._echo_s = _ECHO_S if launched else 0.0
        self._now = now
        self.leave = leave
        """Ends the process at once, with an exit code."""
        self._first_at = 0.0

    def install(self) -> None:
        """Install the signal handlers of the process, and take the signals that were held back."""
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        for number in STOP_SIGNALS:
            signal.signal(number, self.receive)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)

    def receive(self, number: int, frame: FrameType | None) -> None:
        """Count a stop request; the second one ends the process and does not return.

        A signal that `poke` sent and a copy of the first signal are not counted. What the function
        of `on_receipt` raises, passes through.
        """
        if self._poked and number == signal.SIGTERM:
            self._poked = False
            if self._on_receipt is not None:
                self._on_receipt(True)
            return
        if self.count == 0:
            self._first_at = self._now()
        elif self._now() - self._first_at < self._echo_s:
            return
        self.count += 1
        if self.count > 1:
            try:
                self._on_forced()
            finally:
                self.leave(self._forced_code)
        elif self._on_receipt is not None:
            self._on_receipt(False)

    def before_forced(self, action: Callable[[], None]) -> None:
        """Call a function before the process ends at the second request."""
        self._on_forced = action

    def end_with(self, exit_code: int) -> None:
        """Let a second request end the process with this code, without the `before_forced` call."""
        self._on_forced, self._forced_code = (lambda: None), exit_code

    def on_receipt(self, action: Callable[[bool], None] | None) -> None:
        """Call a function in the main thread after the first stop request and after each `poke`.

        Its argument is True after a `poke`. None instead of a function ends the calls.
        """
        self._on_receipt = action

    def poke(self) -> None:
        """Interrupt the main thread from another thread, without a request to stop."""
        self._poked = True
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
