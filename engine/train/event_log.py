"""Where the run is, and the one place that says so: step, timeline, state."""

from __future__ import annotations

import time
from collections.abc import Callable

from ..core.lifecycle import check_transition
from ..protocol.events import AnyEvent, LogEmitted, ProgressMade, StateChanged
from ..protocol.states import RunState
from .journal_writer import JournalWriter

_PROGRESS_EVERY_S = 0.25


class EventLog:
    """Stamps events with step and timeline; silent on every rank but 0."""

    def __init__(self, journal_writer: JournalWriter | None) -> None:
        self._journal_writer = journal_writer
        self.step: Callable[[], int] = lambda: 0
        self.timeline = 1
        self.state = RunState.STARTING
        self._progress = ("", 0.0)
        self._listeners: list[Callable[[AnyEvent], None]] = []

    def listen(self, listener: Callable[[AnyEvent], None]) -> None:
        """Call a listener with every event, on this rank too when it is not the one that tells."""
        self._listeners.append(listener)

    def record(self, event: AnyEvent) -> None:
        """Journal an event at the present step."""
        for listener in self._listeners:
            listener(event)
        if self._journal_writer is not None:
            self._journal_writer.emit(event, step=self.step(), timeline=self.timeline)

    def close(self) -> None:
        """Write everything down; called once, when nothing follows."""
        if self._journal_writer is not None:
            self._journal_writer.close()

    def enter(self, state: RunState, detail: str = "") -> None:
        """Move to another state; staying in it says nothing."""
        if state is self.state:
            return
        check_transition(self.state, state)
        self.state = state
        self.record(StateChanged(state=state, detail=detail))

    def progress(self, label: str, done: float, total: float) -> None:
        """Tell how far a long operation is, a few times a second and at its end."""
        now = time.monotonic()
        known, told_at = self._progress
        if label == known and done < total and now - told_at < _PROGRESS_EVERY_S:
            return
        self._progress = (label, now)
        self.record(ProgressMade(label=label, done=done, total=total))

    def log(self, level: str, text: str) -> None:
        """A line for the log pane."""
        self.record(LogEmitted(level=level, text=text))
