"""How well the viewer hears the run, and whether the run itself still moves."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fttui.engine.protocol.requests import Beat
from fttui.engine.protocol.states import RunState
from fttui.engine.run.run_status import current_state

from .connection_port import Link
from .run_view import RunView

STALL_MIN_S = 5.0
STALL_FACTOR = 3.0


@dataclass(frozen=True)
class LinkView:
    """The connection as shown in the header."""

    link: Link = Link.CONNECTING
    detail: str = ""
    heard_at: float | None = None
    """Unix seconds on this machine when anything last came."""
    beat: Beat | None = None
    clock_offset_s: float = 0.0
    """The run's clock minus ours."""
    read_seq: int = 0
    head_seq: int = 0
    """Newest record there is, while catching up."""
    refills: int = 0
    """How often records that the stream lost were fetched again."""
    answer_s: float | None = None
    """From sending the last command to the hub's answer."""

    def heard(self, now: float) -> LinkView:
        """Something came."""
        return replace(self, heard_at=now)

    def with_beat(self, beat: Beat, now: float) -> LinkView:
        """A heartbeat came."""
        offset = beat.time - now
        return replace(
            self, heard_at=now, beat=beat, clock_offset_s=offset if abs(offset) > 1 else 0.0
        )

    def age_s(self, now: float) -> float | None:
        """Seconds since anything came."""
        return None if self.heard_at is None else max(0.0, now - self.heard_at)

    @property
    def engine_gone(self) -> bool:
        """The hub says that no engine works on the run."""
        return self.beat is not None and not self.beat.engine_alive

    @property
    def catching_up(self) -> bool:
        """A long history is still being fetched."""
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
    """Seconds without a step when that is suspiciously long, else None."""
    if shown_state(run, link) is not RunState.RUNNING:
        return None
    moments = [t for t in (run.last_step_at, run.state_since) if t is not None]
    if not moments:
        return None
    waited = now + link.clock_offset_s - max(moments)
    usual = run.pace.step_s or 0.0
    return waited if waited > max(STALL_MIN_S, STALL_FACTOR * usual) else None
