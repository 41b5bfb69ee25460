"""The interface between the app and its sessions: what a session delivers and can be asked.

The package `connection` implements it for a live run on this machine, a run on a remote host, and
an ended run read from its folder; tests use a fake. Deliveries are plain values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from fttui.engine.protocol.commands import AnyCommand
from fttui.engine.protocol.data.sample import SampleRecord
from fttui.engine.protocol.events import Record
from fttui.engine.protocol.requests import Beat, ConfigTexts

if TYPE_CHECKING:
    from .step_batch import RecordBatch


class Link(Enum):
    """The state of the connection to a run."""

    CONNECTING = "connecting"
    """Not connected yet."""
    LIVE = "live"
    """Connected, and something was received recently."""
    STALE = "stale"
    """Connected, but nothing was received for more than 3 s."""
    LOST = "lost"
    """The connection ended, or nothing was received for more than 10 s; reconnecting."""
    ENDED = "ended"
    """The run has ended and all of it was delivered."""


@dataclass(frozen=True)
class RecordsArrived:
    """New records in sequence order, each once and without gaps since the last delivery."""

    records: list[Record]
    unknown: int = 0
    """Number of further records that this version cannot decode."""


@dataclass(frozen=True)
class HistoryArrived:
    """New records as in `RecordsArrived`, read in bulk from the journal, with steps as columns."""

    batch: RecordBatch


@dataclass(frozen=True)
class PreviewArrived:
    """A selection of the records of a long history that is still being fetched.

    It is shown until the records themselves have arrived up to `head_seq`; all of them arrive,
    whether they are in a preview or not. A preview replaces the one before, unless it extends it.
    """

    records: list[Record]
    """In sequence order."""
    head_seq: int
    """Newest sequence number in the journal when the preview was made."""
    exact: bool = False
    """Whether the records include the extremes of the loss and the largest gradient norm of every
    part of the history; else they are samples at even distances."""
    extends: bool = False
    """Whether these are only the newest records, to be added to those of the preview before."""


@dataclass(frozen=True)
class BeatArrived:
    """A heartbeat of the hub."""

    beat: Beat


@dataclass(frozen=True)
class LinkChanged:
    """The state of the connection changed, or the reason for it."""

    link: Link
    detail: str = ""


@dataclass(frozen=True)
class HistoryProgressed:
    """The progress of fetching the history: the newest record fetched, and the newest there is."""

    seq: int
    head_seq: int


@dataclass(frozen=True)
class CommandAnswered:
    """The hub accepted or rejected a command.

    If it accepted, `reason` is empty, or says why a stop is obeyed without being recorded.
    """

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
    """A viewer's connection to one run, over any number of reconnections."""

    run_id: str
    viewer: str
    """The random id of this viewer process."""
    issuer: str
    """The user and machine that send commands, such as `ann@laptop`."""
    read_only: bool

    async def listen(self, deliver: Deliver) -> None:
        """Deliver everything from the first record on, until cancelled or the run has ended.

        Raises:
            FttuiError: the run cannot be followed any further.
        """

    def submit(
        self,
        command: AnyCommand,
        *,
        reason: str = "",
        if_generation: int | None = None,
        take: bool = False,
    ) -> str:
        """Send a command and return its id at once; the answer comes as `CommandAnswered`.

        Args:
            command: the command to send.
            reason: the reason to record in the journal.
            if_generation: how many changes of the settings the viewer knew when the command was
                made; the hub rejects it if there are more by now. None: the hub does not compare.
            take: take control with the command, in the same request.
        """

    async def take_control(self) -> str | None:
        """Become the controller; return why that was refused, or None on success."""

    async def release_control(self) -> None:
        """Give up control of the run, so that another viewer can take it."""

    async def fetch_report(self, report: str) -> str:
        """Return an anomaly report as Markdown.

        Raises:
            FttuiError: there is no report of that name, or it cannot be fetched.
        """

    async def close(self) -> None:
        """Disconnect; the run continues."""


@runtime_checkable
class SupportsFetchDataSample(Protocol):
    """A session that can fetch the sample of the data, because the run folder is remote."""

    async def fetch_data_sample(self) -> list[SampleRecord]:
        """Return the first training records as the model sees them; empty if the run has none.

        Raises:
            FttuiError: they cannot be fetched.
        """


@runtime_checkable
class SupportsFetchConfigs(Protocol):
    """A session that can fetch configurations, because the run folder is on a remote host."""

    async def fetch_configs(self) -> ConfigTexts:
        """Return the run's configuration files from its folder on the remote host.

        Raises:
            FttuiError: they cannot be fetched.
        """
