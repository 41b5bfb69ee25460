"""The connection to a run, the run's state to show, and whether the run still makes progress."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fttui.engine.protocol.requests import Beat
from fttui.engine.protocol.states import RunState
from fttui.engine.run.run_status import current_state

from .connection_port import Link
from .run_view import RunView

STALL_MIN_S = 5.0
"""Seconds after the last step before which no run counts as stalled."""
STALL_FACTOR = 3.0
"""Multiple of the usual step time before which no run counts as stalled."""


@dataclass(frozen=True)
class LinkView:
    """The connection as shown in the header."""

    link: Link = Link.CONNECTING
    detail: str = ""
    received_at: float | None = None
    """Unix seconds on this machine when anything was last received; None before that."""
    beat: Beat | None = None
    """The newest heartbeat; None before the first one."""
    clock_offset_s: float = 0.0
    """The clock of the run's machine minus the one of this machine; 0 if at most 1 s apart."""
    read_seq: int = 0
    """Newest record fetched while the history is being fetched."""
    head_seq: int = 0
    """Newest record in the journal while the history is being fetched."""
    refills: int = 0
    """How often records that the live stream lost were pulled from the journal."""
    answer_s: float | None = None
    """Seconds from sending the last command to the hub's answer; None before the first answer."""

    def received(self, now: float) -> LinkView:
        """Return the link after anything was received at Unix seconds `now`."""
        return replace(self, received_at=now)

    def with_beat(self, beat: Beat, now: float) -> LinkView:
        """Return the link after a heartbeat was received at Unix seconds `now`."""
        offset = beat.time - now
        return replace(
            self, received_at=now, beat=beat, clock_offset_s=offset if abs(offset) > 1 else 0.0
        )

    def age_s(self, now: float) -> float | None:
        """Return the seconds since anything was received; None if nothing was."""
        return None if self.received_at is None else max(0.0, now - self.received_at)

    @property
    def engine_gone(self) -> bool:
        """Whether the newest heartbeat reports that no engine works on the run."""
        return self.beat is not None and not self.beat.engine_alive

    @property
    def catching_up(self) -> bool:
        """Whether the history is still being fetched."""
        return self.link is not Link.ENDED and self.read_seq < self.head_seq


def shown_state(run: RunView, link: LinkView) -> RunState:
    """Return the state to show, from the records read so far and the newest heartbeat."""
    beat = link.beat
    reported = run.state if run.seq else None
    if beat is not None and beat.engine_alive:
        # An end with records after it is one that the run was resumed from.
        resumed = reported is not None and reported.ended and run.seq < beat.last_seq
        if reported is None or resumed:
            return beat.state
    gone = link.engine_gone or link.link is Link.ENDED
    return current_state(reported, engine_known=beat is not None, engine_alive=not gone)


def stalled_s(run: RunView, link: LinkView, now: float) -> float | None:
    """Return for how many seconds a running run has made no step, if that is far more than usual.

    They count from the last step or from the last change of state, whichever is later. The result
    is None if that is not unusual, if the run is not running, and before any record of it.
    """
    if shown_state(run, link) is not RunState.RUNNING:
        return None
    moments = [t for t in (run.last_step_at, run.state_since) if t is not None]
    if not moments:
        return None
    waited = now + link.clock_offset_s - max(moments)
    usual = run.pace.step_s or 0.0
    return waited if waited > max(STALL_MIN_S, STALL_FACTOR * usual) else None
