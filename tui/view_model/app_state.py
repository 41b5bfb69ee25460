"""The state of the app as one frozen value, and the functions that fold deliveries into it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby

from fttui.engine.protocol.commands import AnyCommand, describe_command
from fttui.engine.protocol.data.sample import SampleRecord
from fttui.engine.protocol.events import Record
from fttui.engine.protocol.states import RunState

from .chat.draft import ChatDraft
from .config_view import ConfigView
from .connection_port import (
    BeatArrived,
    CommandAnswered,
    Delivery,
    HistoryArrived,
    HistoryProgressed,
    Link,
    LinkChanged,
    PreviewArrived,
    RecordsArrived,
)
from .disk_warning import DiskWarning, trouble
from .history.ranking import Candidate, RankedRun, ranking
from .interventions import Intervention, OpenProposal, Phase
from .link import LinkView, shown_state, stalled_s
from .plot_view import PlotView
from .reducer import apply_batch, apply_many
from .run_view import RunView
from .step_batch import RecordBatch


@dataclass(frozen=True)
class OtherRun:
    """Another run that is compared with this one, read from its folder."""

    id: str
    run: RunView
    config: ConfigView


@dataclass(frozen=True)
class AppState:
    """The run, the connection to it, and the user's view of it."""

    run_id: str = ""
    viewer: str = ""
    issuer: str = ""
    read_only: bool = False
    confined: bool = False
    """Whether the app shows this run alone and writes no file, as in a browser."""
    run: RunView = field(default_factory=RunView)
    """The run as shown: as far as its history was read, or a preview of it."""
    reading: RunView | None = None
    """The history read so far, while a preview is shown; None otherwise."""
    head_seq: int = 0
    """Sequence number up to which the history must be read to replace the preview."""
    link: LinkView = field(default_factory=LinkView)
    plot: PlotView = field(default_factory=PlotView)
    chat: ChatDraft = field(default_factory=ChatDraft)
    """What the next prompt of a chat is sent with."""
    config: ConfigView = field(default_factory=ConfigView)
    """The run's configuration; empty until it was read or received."""
    data_sample: tuple[SampleRecord, ...] = ()
    """The first training records as the model sees them; empty until they were read or received."""
    others: tuple[OtherRun, ...] = ()
    """The runs that this run is compared with."""
    reading_runs: int = 0
    """Number of runs of the comparison that are still to be read."""
    left_out: int = 0
    """Number of marked runs that the comparison leaves out, such as remote ones."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """Action id → its key as shown, with the user's own keys."""
    fault: str = ""
    """The error that ended listening; empty without one."""

    @cached_property
    def compared(self) -> list[RankedRun]:
        """The runs of the comparison, this one among them, best first."""
        own = Candidate(self.run_id, self.run, self.config.values, own=True)
        others = (Candidate(other.id, other.run, other.config.values) for other in self.others)
        return ranking([own, *others], self.plot.picks)

    @property
    def state(self) -> RunState:
        """The run's state as shown, which also takes the heartbeat into account."""
        return shown_state(self.run, self.link)

    @property
    def trouble(self) -> DiskWarning | None:
        """The warning about disk space; None without one."""
        return trouble(self.run, self.link)

    @property
    def connecting(self) -> bool:
        """Whether the viewer is still connecting and no heartbeat has arrived."""
        return self.link.link is Link.CONNECTING and self.link.beat is None

    @property
    def starting(self) -> bool:
        """Whether the run has not ended and no finished step of it has been read yet."""
        return self.run.last is None and not self.state.ended

    @property
    def name(self) -> str:
        """The run's name, or its id before the name is known."""
        return self.run.started.name if self.run.started else self.run_id

    @property
    def controller(self) -> str | None:
        """The issuer that has control; None if nobody has it or it is unknown."""
        return self.link.beat.controller if self.link.beat else None

    @property
    def controls(self) -> bool:
        """Whether this viewer is the one that controls the run."""
        beat = self.link.beat
        return beat is not None and beat.controller_viewer == self.viewer

    @property
    def generation(self) -> int | None:
        """Number of changes of the run's settings so far; None before the first heartbeat."""
        return self.link.beat.generation if self.link.beat else None

    def open_proposals(self, now: float) -> tuple[OpenProposal, ...]:
        """Return the proposals that can be answered at Unix seconds `now`, the oldest first."""
        if self.state.ended:
            return ()
        return self.run.open_proposals(now + self.link.clock_offset_s)

    def left_s(self, proposal: OpenProposal, now: float) -> float:
        """Return the seconds at Unix seconds `now` after which a proposal expires."""
        return proposal.expires_at - (now + self.link.clock_offset_s)

    def stalled_s(self, now: float) -> float | None:
        """Return for how many seconds a running run has made no step, if far more than usual.

        None otherwise, and while the connection is not live.
        """
        return stalled_s(self.run, self.link, now) if self.link.link is Link.LIVE else None


def fold(state: AppState, deliveries: Sequence[Delivery], now: float) -> AppState:
    """Return the state after a batch of deliveries that arrived at `now` (Unix seconds).

    Records that came one after another are folded together, which costs little more than one.
    """
    for alike, group in groupby(deliveries, lambda one: isinstance(one, RecordsArrived)):
        for delivery in [_joined(group)] if alike else group:
            state = _fold_one(state, delivery, now)
    return state


def _joined(deliveries: Iterable[Delivery]) -> RecordsArrived:
    found = [one for one in deliveries if isinstance(one, RecordsArrived)]
    records = [record for one in found for record in one.records]
    return RecordsArrived(records, sum(one.unknown for one in found))


def _fold_one(state: AppState, delivery: Delivery, now: float) -> AppState:
    match delivery:
        case RecordsArrived(records=records, unknown=unknown):
            return _read(state, RecordBatch(records, unknown), now)
        case HistoryArrived(batch=batch):
            return _read(state, batch, now)
        case PreviewArrived():
            return _preview(state, delivery)
        case CommandAnswered():
            return _answered(state, delivery, now)
        case _:
            return replace(state, link=_linked(state.link, delivery, now))


def _linked(
    link: LinkView, news: BeatArrived | LinkChanged | HistoryProgressed, now: float
) -> LinkView:
    match news:
        case BeatArrived(beat=beat):
            return link.with_beat(beat, now)
        case LinkChanged(link=state, detail=detail):
            return replace(link, link=state, detail=detail)
        case HistoryProgressed(seq=seq, head_seq=head):
            refilled = link.link is Link.LIVE and not link.catching_up and seq > 1
            return replace(link, read_seq=seq, head_seq=head, refills=link.refills + refilled)


def _read(state: AppState, batch: RecordBatch, now: float) -> AppState:
    """Apply records; while a preview is shown, they are shown once they reach its `head_seq`."""
    previewed = state.reading is not None
    run = apply_batch(state.reading or state.run, batch)
    link = replace(state.link.received(now), read_seq=run.seq)
    if previewed and run.seq < state.head_seq:
        return replace(state, reading=run, link=link)
    return replace(state, run=run, reading=None, link=link)


def _preview(state: AppState, preview: PreviewArrived) -> AppState:
    read = state.reading or state.run
    if preview.head_seq <= read.seq:
        return state
    base = state.run if preview.extends and state.reading is not None else RunView()
    shown = apply_many(base, preview.records)
    for mine in state.run.interventions:
        # Commands sent by this viewer may not be in the records of the preview yet.
        if mine.sent_at is not None:
            shown = replace(shown, interventions=shown.interventions.upsert(mine))
    return replace(state, run=shown, reading=read, head_seq=preview.head_seq)


def submitted(
    state: AppState, command_id: str, command: AnyCommand, reason: str, now: float
) -> AppState:
    """Return the state after this viewer sent a command, which is listed as sent."""
    entry = Intervention(
        id=command_id,
        text=describe_command(command),
        issuer=state.issuer,
        sent_at=now,
        reason=reason,
        step=state.run.step,
    )
    return _with(state, entry)


def _answered(state: AppState, answer: CommandAnswered, now: float) -> AppState:
    phase = Phase.ACCEPTED if answer.accepted else Phase.REJECTED
    known = state.run.interventions.find(answer.id)
    if known is None or known.settled:
        return state
    entry = Intervention(
        id=answer.id, text=known.text, issuer=known.issuer, phase=phase, refusal=answer.reason
    )
    took = None if known.sent_at is None else max(0.0, now - known.sent_at)
    return _with(replace(state, link=replace(state.link, answer_s=took)), entry)


def _with(state: AppState, entry: Intervention) -> AppState:
    run = replace(state.run, interventions=state.run.interventions.upsert(entry))
    read = state.reading and replace(
        state.reading, interventions=state.reading.interventions.upsert(entry)
    )
    return replace(state, run=run, reading=read)


def take_slice(waiting: list[Delivery], room: int) -> list[Delivery]:
    """Remove deliveries that cost about as much as `room` records from the front; return them.

    Single records beyond `room` stay in `waiting`; a batch of the history is never divided.
    """
    taken: list[Delivery] = []
    while waiting and room > 0:
        delivery = waiting.pop(0)
        if isinstance(delivery, RecordsArrived) and len(delivery.records) > room:
            waiting.insert(0, RecordsArrived(delivery.records[room:]))
            delivery = RecordsArrived(delivery.records[:room], delivery.unknown)
        room -= _worth(delivery)
        taken.append(delivery)
    return taken


_BATCH_IS_WORTH = 10
"""Folding a record of a batch is this many times cheaper than folding a single record."""


def _worth(delivery: Delivery) -> int:
    match delivery:
        case RecordsArrived(records=records) | PreviewArrived(records=records):
            return len(records)
        case HistoryArrived(batch=batch):
            return sum(
                1 if isinstance(p, Record) else len(p) // _BATCH_IS_WORTH for p in batch.parts
            )
        case _:
            return 1
