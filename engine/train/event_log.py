"""Event log: stamps events with step and timeline and passes them to journal and listeners."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from ..core.lifecycle import check_transition
from ..protocol.events import AnyEvent, LogEmitted, ProgressMade, StateChanged
from ..protocol.states import RunState
from .journal_writer import JournalWriter
from .position import Position

_PROGRESS_EVERY_S = 0.25


class EventLog:
    """Records the events of a run; only rank 0 has a journal writer."""

    def __init__(self, journal_writer: JournalWriter | None, *, timeline: int = 1) -> None:
        self._journal_writer = journal_writer
        self.position = Position()
        """Finished steps and scheduled learning rate; the trainer updates them."""
        self.timeline = timeline
        self.state = RunState.STARTING
        self._progress = ("", 0.0)
        self._held_step: int | None = None
        self._listeners: list[Callable[[AnyEvent], None]] = []

    @property
    def step(self) -> int:
        """Number of finished optimizer steps, those that are only repeated left out."""
        return self.position.step if self._held_step is None else self._held_step

    def hold_step(self) -> None:
        """Record events at the present step while earlier steps are repeated."""
        self._held_step = self.position.step

    def release_step(self) -> None:
        """Record events at the step of the position again."""
        self._held_step = None

    def folder_losses(self) -> int:
        """Return how often the run folder or its checkpoints were removed; 0 except on rank 0."""
        return self._journal_writer.folder_losses if self._journal_writer else 0

    @property
    def listeners(self) -> tuple[Callable[[AnyEvent], None], ...]:
        """The registered functions, to return to with `restore_listeners`."""
        return tuple(self._listeners)

    def restore_listeners(self, known: Sequence[Callable[[AnyEvent], None]]) -> None:
        """Forget the functions that were registered after `known` was read."""
        self._listeners = list(known)

    def listen(self, listener: Callable[[AnyEvent], None]) -> None:
        """Register a function that this rank calls with every event."""
        self._listeners.append(listener)

    def record(self, event: AnyEvent) -> None:
        """Pass an event to the listeners, and journal it at the current step and timeline."""
        for listener in self._listeners:
            listener(event)
        if self._journal_writer is not None:
            self._journal_writer.emit(event, step=self.step, timeline=self.timeline)

    def sync(self) -> None:
        """Wait until the events recorded so far are on disk, or a few seconds if they cannot be."""
        if self._journal_writer is not None:
            self._journal_writer.sync_all()

    def close(self) -> None:
        """Write all events to disk; called once, after the last one."""
        if self._journal_writer is not None:
            self._journal_writer.close()

    def open_timeline(self) -> int:
        """Start a new timeline and return its number."""
        self.timeline += 1
        return self.timeline

    def enter(self, state: RunState, detail: str = "") -> None:
        """Change the state of the run; entering the current state records nothing.

        Raises:
            IllegalTransition: the new state may not follow the current one.
        """
        if state is self.state:
            return
        check_transition(self.state, state)
        self.state = state
        self.record(StateChanged(state=state, detail=detail))

    def progress(self, label: str, done: float, total: float) -> None:
        """Record the progress of an operation, at most 4 times a second.

        The first progress under a label and the completion are always recorded.
        """
        now = time.monotonic()
        known, recorded_at = self._progress
        if label == known and done < total and now - recorded_at < _PROGRESS_EVERY_S:
            return
        self._progress = (label, now)
        self.record(ProgressMade(label=label, done=done, total=total))

    def log(self, level: str, text: str) -> None:
        """Record a line for the log screen."""
        self.record(LogEmitted(level=level, text=text))
