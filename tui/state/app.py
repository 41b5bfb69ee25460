"""Everything the screens are drawn from, as one frozen value folded from deliveries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from fttui.engine.protocol.commands import AnyCommand, describe_command
from fttui.engine.protocol.states import RunState

from ..client.port import (
    BeatArrived,
    CommandAnswered,
    Delivery,
    HistoryProgressed,
    Link,
    LinkChanged,
    PreviewArrived,
    RecordsArrived,
)
from .apply import apply_many
from .interventions import Intervention, Phase
from .link import LinkView, shown_state, stalled_s
from .plotview import PlotView
from .run import RunView


@dataclass(frozen=True)
class AppState:
    """The run, the link to it, and how the person looks at it."""

    run_id: str = ""
    viewer: str = ""
    issuer: str = ""
    read_only: bool = False
    run: RunView = field(default_factory=RunView)
    link: LinkView = field(default_factory=LinkView)
    plot: PlotView = field(default_factory=PlotView)
    fault: str = ""
    """Why listening ended, when it ended with an error."""

    @property
    def state(self) -> RunState:
        """The run's state as it should be shown."""
        return shown_state(self.run, self.link)

    @property
    def starting(self) -> bool:
        """Nothing has been trained yet."""
        return self.run.last is None and not self.state.ended

    @property
    def name(self) -> str:
        """What the run is called."""
        return self.run.started.name if self.run.started else self.run_id

    @property
    def controller(self) -> str | None:
        """Who holds control; None when nobody does or it is unknown."""
        return self.link.beat.controller if self.link.beat else None

    @property
    def controls(self) -> bool:
        """This viewer holds control."""
        beat = self.link.beat
        return beat is not None and beat.controller_viewer == self.viewer

    @property
    def generation(self) -> int | None:
        """Of the desired control state, from the last beat."""
        return self.link.beat.generation if self.link.beat else None

    def stalled_s(self, now: float) -> float | None:
        """Seconds without a step when suspiciously long."""
        return stalled_s(self.run, self.link, now) if self.link.link is Link.LIVE else None


def fold(state: AppState, deliveries: Sequence[Delivery], now: float) -> AppState:
    """The state after a batch of deliveries that came at `now` (Unix seconds)."""
    for delivery in deliveries:
        state = _fold_one(state, delivery, now)
    return state


def _fold_one(state: AppState, delivery: Delivery, now: float) -> AppState:
    match delivery:
        case RecordsArrived(records=records, unknown=unknown):
            run = apply_many(state.run, records)
            run = replace(run, unknown=run.unknown + unknown) if unknown else run
            link = replace(state.link.heard(now), read_seq=run.seq)
            return replace(state, run=run, link=link)
        case PreviewArrived():
            return state
        case BeatArrived(beat=beat):
            return replace(state, link=state.link.with_beat(beat, now))
        case LinkChanged(link=link_state, detail=detail):
            return replace(state, link=replace(state.link, link=link_state, detail=detail))
        case HistoryProgressed(seq=seq, head_seq=head):
            link = replace(state.link, read_seq=seq, head_seq=head)
            return replace(state, link=link)
        case CommandAnswered():
            return _answered(state, delivery)


def submitted(
    state: AppState, command_id: str, command: AnyCommand, reason: str, now: float
) -> AppState:
    """The state after this viewer sent a command."""
    entry = Intervention(
        id=command_id,
        text=describe_command(command),
        issuer=state.issuer,
        sent_at=now,
        reason=reason,
        step=state.run.step,
    )
    return _with(state, entry)


def _answered(state: AppState, answer: CommandAnswered) -> AppState:
    phase = Phase.ACCEPTED if answer.accepted else Phase.REJECTED
    known = state.run.interventions.find(answer.id)
    if known is None or known.settled:
        return state
    entry = Intervention(
        id=answer.id, text=known.text, issuer=known.issuer, phase=phase, refusal=answer.reason
    )
    return _with(state, entry)


def _with(state: AppState, entry: Intervention) -> AppState:
    run = replace(state.run, interventions=state.run.interventions.upsert(entry))
    return replace(state, run=run)


def take_slice(waiting: list[Delivery], room: int) -> list[Delivery]:
    """Take deliveries off the front, worth about `room` records."""
    taken: list[Delivery] = []
    while waiting and room > 0:
        delivery = waiting.pop(0)
        if isinstance(delivery, RecordsArrived) and len(delivery.records) > room:
            waiting.insert(0, RecordsArrived(delivery.records[room:]))
            delivery = RecordsArrived(delivery.records[:room], delivery.unknown)
        room -= len(delivery.records) if isinstance(delivery, RecordsArrived) else 1
        taken.append(delivery)
    return taken
