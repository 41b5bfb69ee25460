"""Watches a run for what is worth a message; pure, so the caller gives it records and readings."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from statistics import median

from ...protocol.events import Record, RunStarted, StepFinished
from ...protocol.states import RunState
from ...run.run_status import LifecycleStatus
from .messages import Message, message_about

_FEWEST_STEPS, _MOST_STEPS = 5, 50
_SHORTEST_STALL_S = 120.0
_DISK_IS_FREE_AGAIN = 1.5
"""Factor on the limit above which a nearly full disk counts as free again."""


class RunWatch:
    """The incidents of one run, each reported in one message."""

    def __init__(self, stalled_factor: float, disk_bytes: float, told: set[str]) -> None:
        """Prepare it.

        Args:
            stalled_factor: a stall is this many times the median time of a step.
            disk_bytes: free space below which the disk is nearly full.
            told: incidents that are reported already; new ones are added.
        """
        self._factor, self._disk_bytes = stalled_factor, disk_bytes
        self._told = told
        self._lifecycle = LifecycleStatus()
        self._steps: deque[float] = deque(maxlen=_MOST_STEPS)
        self._moved_at = 0.0
        self._step = 0
        self._stall = self._disk_low = False

    @property
    def ended(self) -> bool:
        """Whether the newest engine has reported its end."""
        state = self._lifecycle.reported
        return state is not None and state.ended

    def record(self, record: Record, now: float) -> Message | None:
        """Take in the next record, read at `now`; return the message to send about it, if any.

        Times are those of a steady clock, so that no setting of the clock makes a stall.
        """
        self._lifecycle.add(record.event, record.time, record.seq)
        self._moved_at, self._step = now, record.step
        if isinstance(record.event, StepFinished):
            self._stall = False
            if record.event.step_s > 0:
                self._steps.append(record.event.step_s)
        elif isinstance(record.event, RunStarted):
            self._steps.clear()
        return self._first_time(message_about(record))

    def look(self, now: float, disk_free_bytes: int | None) -> Iterator[Message]:
        """Yield messages about what no record reports: a stall, a nearly full disk.

        Args:
            now: seconds of the steady clock.
            disk_free_bytes: free space where the run folder is; None if it is not known.
        """
        if (limit := self.stall_limit_s()) and now - self._moved_at > limit and not self._stall:
            self._stall = True
            waited = f"no step for {now - self._moved_at:,.0f} s"
            usual = f"the median is {median(self._steps):.3g} s"
            yield self._message("stalled", f"{waited} after step {self._step:,}; {usual}")
        if disk_free_bytes is None:
            return
        if disk_free_bytes < self._disk_bytes and not self._disk_low:
            self._disk_low = True
            free = f"{disk_free_bytes / 2**30:.1f} GiB are free where the run folder is"
            yield self._message("disk", f"the disk is nearly full: {free}")
        elif disk_free_bytes > self._disk_bytes * _DISK_IS_FREE_AGAIN:
            self._disk_low = False

    def lost(self) -> Message | None:
        """Return the message that the engine is gone and reported no end; None if it was sent."""
        number = self._lifecycle.incarnation
        text = f"step {self._step:,}: the training process is gone, and it reported no end"
        return self._first_time(Message(kind="failed", incident=f"lost {number}", text=text))

    def stall_limit_s(self) -> float | None:
        """Return the seconds without a step that are a stall; None while none is expected."""
        if self._lifecycle.reported is not RunState.RUNNING or len(self._steps) < _FEWEST_STEPS:
            return None
        return max(_SHORTEST_STALL_S, self._factor * median(self._steps))

    def _message(self, kind: str, text: str) -> Message:
        return Message(kind=kind, incident=f"{kind} at step {self._step}", text=text)

    def _first_time(self, message: Message | None) -> Message | None:
        if message is None or message.incident in self._told:
            return None
        self._told.add(message.incident)
        return message
