"""The seam between the app and a run: what a session delivers and what can be asked of it.

`hub.HubSession` is a live run over its hub, `journal.JournalSession` a finished or dead run read
from its folder; tests use a fake. Deliveries are plain values; the app turns them into messages.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from fttui.engine.protocol.commands import AnyCommand
from fttui.engine.protocol.events import Record
from fttui.engine.protocol.requests import Beat, ConfigTexts

if TYPE_CHECKING:
    from .step_batch import RecordBatch


class Link(Enum):
    """How well the viewer hears the run."""

    CONNECTING = "connecting"
    LIVE = "live"
    STALE = "stale"
    """Connected once, nothing heard for over 3 s."""
    LOST = "lost"
    """Nothing heard for over 10 s or the hub is gone; reconnecting."""
    ENDED = "ended"
    """Read from disk: nothing more will come."""


@dataclass(frozen=True)
class RecordsArrived:
    """New records in sequence order, without gaps or doubles since the last delivery."""

    records: list[Record]
    unknown: int = 0
    """Records of a newer protocol that this version cannot show."""


@dataclass(frozen=True)
class HistoryArrived:
    """As `RecordsArrived`, read in bulk from the journal: finished steps come as columns."""

    batch: RecordBatch


@dataclass(frozen=True)
class PreviewArrived:
    """A thinned picture of history that is still on its way: real records, with holes between them.

    Good for drawing until `RecordsArrived` has come as far as `head_seq`; it takes nothing from
    what that delivers. A later preview replaces the one before, unless it extends it.
    """

    records: list[Record]
    """In sequence order."""
    head_seq: int
    """Newest sequence number in the journal when this was made."""
    exact: bool = False
    """Smallest and largest loss and gradient norm of every part are among them; else samples."""
    extends: bool = False
    """The newest records only: they come behind those of the preview before."""


@dataclass(frozen=True)
class BeatArrived:
    """The hub's heartbeat."""

    beat: Beat


@dataclass(frozen=True)
class LinkChanged:
    """The link is in another state."""

    link: Link
    detail: str = ""


@dataclass(frozen=True)
class HistoryProgressed:
    """How much of the history has been fetched while catching up."""

    seq: int
    head_seq: int


@dataclass(frozen=True)
class CommandAnswered:
    """The hub's word on a submitted command; `reason` is empty when accepted."""

    id: str
    accepted: bool
    reason: str = ""


Delivery = (
    RecordsArrived
    | HistoryArrived
    | PreviewArrived
    | BeatArrived
    | LinkChanged
    | HistoryProgressed
    | CommandAnswered
)
Deliver = Callable[[Delivery], None]


class Session(Protocol):
    """A viewer's connection to one run."""

    run_id: str
    viewer: str
    """Random id of this viewer process."""
    issuer: str
    """Such as `ann@laptop`."""
    read_only: bool

    async def listen(self, deliver: Deliver) -> None:
        """Deliver everything from the first record on, for ever (or until a dead run is read)."""

    def submit(
        self, command: AnyCommand, *, reason: str = "", if_generation: int | None = None
    ) -> str:
        """Send a command and return its id at once; the answer comes as `CommandAnswered`."""

    async def take_control(self) -> str | None:
        """Become the controller; returns why not, or None."""

    async def release_control(self) -> None:
        """Give control up."""

    async def fetch_report(self, report: str) -> str:
        """An anomaly report as Markdown."""

    async def close(self) -> None:
        """Leave; the run goes on."""


@runtime_checkable
class SupportsFetchConfigs(Protocol):
    """What a session has besides when the run's folder is on another machine."""

    async def fetch_configs(self) -> ConfigTexts:
        """The run's configuration, as its folder over there has it."""
