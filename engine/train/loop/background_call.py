"""Background call: runs one call at a time on a thread of its own, during a backward pass."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")
_Results = SimpleQueue[tuple[T | None, BaseException | None]]


class BackgroundCall(Generic[T]):
    """Runs a call while the training thread waits for something without the interpreter lock.

    If both threads need the interpreter they take turns, so a call costs the training at most as
    much as a direct one. The thread ends with this object.
    """

    def __init__(self, name: str) -> None:
        self.running = False
        """Whether a call was started whose result was not taken yet."""
        self._name = name
        self._calls: SimpleQueue[Callable[[], T] | None] = SimpleQueue()
        self._results: _Results[T] = SimpleQueue()
        self._started = False

    def start(self, call: Callable[[], T]) -> None:
        """Start a call; the result of the one before must have been taken."""
        if not self._started:
            self._started = True
            calls, results = self._calls, self._results
            threading.Thread(
                target=_answer, args=(calls, results), name=self._name, daemon=True
            ).start()
            weakref.finalize(self, calls.put, None)
        self.running = True
        self._calls.put(call)

    def result(self) -> T:
        """Wait for the end of the call and return its result; what it raises is raised here."""
        value, error = self._results.get()
        self.running = False
        if error is not None:
            raise error
        return value  # type: ignore[return-value]  # set where there is no error


def _answer(calls: SimpleQueue[Callable[[], T] | None], results: _Results[T]) -> None:
    """Run the calls of a queue one by one and queue their results, until a None arrives."""
    while (call := calls.get()) is not None:
        try:
            results.put((call(), None))
        except BaseException as error:  # noqa: BLE001 -- it is raised where the result is taken
            results.put((None, error))
        del call
