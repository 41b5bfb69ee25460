"""Delivers the journal of a run to its end, and what is added while the run is followed."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

from ...errors import FttuiError
from ...run.records.record_feed import RecordFeed, engine_works
from ...run.run_dir import RunDirectory
from .courier import BeginAgain, Courier

_POLL_S = 1.0
_LONGEST_PAUSE_S = 60.0
_ATTEMPTS = 3
"""How often an ended run is tried, or one that is not followed."""


class Follower:
    """Brings a tracker up to the end of the journal, again and again while the run is followed.

    An error of the tracker is said once, however often it repeats, and so is its end.
    """

    def __init__(
        self,
        run: RunDirectory,
        courier: Courier,
        say: Callable[[str], None],
        wait: Callable[[float], bool],
    ) -> None:
        """Prepare it.

        Args:
            run: the run.
            courier: delivers its records.
            say: says a line to the user.
            wait: waits some seconds and returns whether to end.
        """
        self._run, self._courier = run, courier
        self._say, self._wait = say, wait
        self._feed = RecordFeed(run)
        self._failures = 0
        self._failing_since = 0.0

    def follow(self, *, while_it_runs: bool) -> None:
        """Deliver what is there, and what comes while an engine works on the run.

        Raises:
            FttuiError: the tracker failed several times, and no engine works on the run or it is
                not followed.
        """
        while True:
            works = engine_works(self._run)
            error = self._attempt(rest=not works)
            goes_on = works and while_it_runs
            if error is not None and not goes_on and self._failures >= _ATTEMPTS:
                raise FttuiError(
                    f"not everything could be delivered: {error}; what is missing is delivered the "
                    "next time"
                )
            if error is None and not goes_on:
                self._courier.conclude(engine_works=works)
                return
            if self._wait(self._pause_s(error)):
                with suppress(Exception):  # what is not closed now is closed by the next process
                    self._courier.conclude(engine_works=True)
                return

    def _pause_s(self, error: Exception | None) -> float:
        return min(_LONGEST_PAUSE_S, 2.0 ** (self._failures - 1)) if error else _POLL_S

    def _attempt(self, *, rest: bool) -> Exception | None:
        """Deliver all that the journal holds now; return the error that prevented it."""
        try:
            self._pump(rest=rest)
        except BeginAgain:
            self._begin_again()
            return self._attempt(rest=rest)
        except Exception as error:  # noqa: BLE001  # a library may raise any exception
            self._fail(error)
            return error
        if self._failures:
            seconds = time.monotonic() - self._failing_since
            self._say(f"delivers again, after {seconds:.0f} s and {self._failures} failures")
        self._failures = 0
        return None

    def _pump(self, *, rest: bool) -> None:
        while records := self._feed.read():
            self._courier.deliver(records)
        if rest:
            self._courier.deliver(self._feed.read_rest())

    def _fail(self, error: Exception) -> None:
        self._failures += 1
        if self._failures == 1:
            self._failing_since = time.monotonic()
            self._say(f"cannot deliver ({type(error).__name__}: {error}); tries again")
        self._begin_again()

    def _begin_again(self) -> None:
        self._feed = RecordFeed(self._run)
        self._courier.restart()

    @property
    def not_read(self) -> list[str]:
        """What of the journal could not be read, in words."""
        return self._feed.not_read
