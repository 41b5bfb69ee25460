"""Early stop: ends an engine that is asked to stop while it imports libraries or loads the model.

Nothing has to be saved then. A signal interrupts Python code at once; code of a library that does
not return to Python is left after a few seconds. With several ranks, each ends by itself and
notifies the others. A rank that has come to the first boundary waits there for all others, so none
of them trains while another one leaves.
"""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from ...protocol.commands import Stop
from ...protocol.events import AnyEvent, StepFinished
from ...protocol.states import RunState
from ...run.control_log import ControlReader
from ...run.run_dir import RunDirectory
from ..event_log import EventLog
from ..signals import StopSignals
from .stop_notice import StopNotice

_LOOK_EVERY_S = 0.1
_AGAIN_S = 1.0
"""Seconds between two interruptions, since a library may swallow one."""
_STUCK_S = 5.0
"""Seconds after the first interruption until the process leaves without its main thread."""


class StoppedEarly(BaseException):
    """A stop was requested during loading; not an `Exception`, so that no handler catches it."""


class EarlyStop:
    """Interrupts the main thread if a stop is requested before training; watches in a thread."""

    def __init__(
        self,
        event_log: EventLog,
        signals: StopSignals,
        stop_waits: Callable[[], bool],
        leave: Callable[[], None],
        notice: StopNotice | None = None,
        *,
        stuck_s: float = _STUCK_S,
    ) -> None:
        """Make a watch that does not run yet.

        Args:
            event_log: shows whether the run is still starting, and has finished a step.
            signals: the stop signals of the process.
            stop_waits: returns whether a stop command waits; called in the thread.
            leave: ends the process without its main thread; called in the thread.
            notice: notifies the other ranks; None if there are none.
            stuck_s: seconds after which a main thread that cannot be interrupted is left.
        """
        self._event_log = event_log
        self._signals = signals
        self._stop_waits = stop_waits
        self.leave = leave
        self._notice = notice
        self._trained = self._signal_seen = False
        event_log.listen(self._observe)
        self._stuck_s = stuck_s
        self._raised_at = -_AGAIN_S
        self._ended = threading.Event()
        self._awake, self._waker = os.pipe()
        os.set_blocking(self._waker, False)
        self._thread = threading.Thread(target=self._watch, name="early stop", daemon=True)

    def _observe(self, event: AnyEvent) -> None:
        self._trained = self._trained or isinstance(event, StepFinished)

    def another_rank_stopped(self) -> bool:
        """Return whether another rank left because of a stop, before this one trained a step."""
        return self._notice is not None and not self._trained and self._notice.given()

    def tell_others(self) -> None:
        """Inform the other ranks, if there are any, that this one leaves because of a stop."""
        if self._notice is not None:
            self._notice.give(by_signal=self.by_signal)

    @property
    def by_signal(self) -> bool:
        """Whether a signal, to this rank or another one, requested the stop.

        The handler may not have counted it: the kernel merges a signal that waits with the one by
        which this watch interrupts the main thread.
        """
        if self._signals.count or self._signal_seen:
            return True
        return self._notice is not None and self._notice.by_signal()

    @property
    def _loading(self) -> bool:
        return self._event_log.state is RunState.STARTING and not self._ended.is_set()

    def begin(self) -> None:
        """Start to watch; called in the main thread.

        Raises:
            StoppedEarly: a stop signal arrived already. From now on until the run trains, it may be
                raised anywhere in the main thread.
        """
        signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
        self._thread.start()
        self._signals.on_receipt(self._raise_if_stopped)  # not before: `end` waits for the thread
        self._raise_if_stopped(poked=False)

    def end(self) -> None:
        """Stop watching; called in the main thread, once or more often."""
        if self._ended.is_set():
            return
        self._ended.set()
        os.write(self._waker, b"\0")  # the thread need not wait for its next look
        self._thread.join()
        self._signals.on_receipt(None)
        signal.set_wakeup_fd(-1)
        os.close(self._awake)
        os.close(self._waker)

    def _raise_if_stopped(self, poked: bool) -> None:
        """Raise `StoppedEarly` if a stop was requested and this rank still loads.

        It is raised at most once in `_AGAIN_S` seconds.
        """
        if not (self._loading and (poked or self._signals.count)):
            return
        # Not again while the stack is left; later again, because a library may have swallowed it.
        if (now := time.monotonic()) >= self._raised_at + _AGAIN_S:
            self._raised_at = now
            raise StoppedEarly

    def _watch(self) -> None:
        asked = False
        poked_at = first_poke = 0.0
        while self._loading:
            signalled = self._signal_arrived()
            self._signal_seen = self._signal_seen or (signalled and not first_poke)
            asked = asked or signalled or bool(self._signals.count) or self._stop_was_asked()
            if not asked:
                continue
            if (now := time.monotonic()) >= poked_at + _AGAIN_S:
                poked_at, first_poke = now, first_poke or now
                self._signals.poke()
                self.tell_others()
            if now > first_poke + self._stuck_s and self._loading:
                self.leave()
                return

    def _stop_was_asked(self) -> bool:
        """Return whether a stop command waits, or another rank was asked to stop."""
        return self._stop_waits() or (self._notice is not None and self._notice.given())

    def _signal_arrived(self) -> bool:
        """Wait up to `_LOOK_EVERY_S`; return whether SIGINT or SIGTERM arrived meanwhile.

        It is noticed even if no Python handler could run yet.
        """
        ready, _, _ = select.select([self._awake], [], [], _LOOK_EVERY_S)
        arrived = os.read(self._awake, 64) if ready else b""
        return any(number in (signal.SIGINT, signal.SIGTERM) for number in arrived)


class WaitingStop:
    """Looks in the control journal for a stop that was accepted since the engine started."""

    def __init__(self, run: RunDirectory, control_seq: int) -> None:
        self._reader = ControlReader(run)
        self._reader.take(control_seq)
        self._found = False

    def __call__(self) -> bool:
        """Return whether the hub has accepted a stop command since the engine started."""
        with suppress(OSError):
            news = self._reader.take(self._reader.waiting())
            self._found = self._found or any(isinstance(entry.command, Stop) for entry in news)
        return self._found
