"""What viewers and the hub say to each other, apart from the event stream."""

from __future__ import annotations

import msgspec

from .commands import AnyCommand
from .states import RunState


class ClientMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="k"):
    """Viewer → hub; `ref` is echoed in the reply."""

    ref: int


class Hello(ClientMessage, frozen=True, kw_only=True, tag="Hello"):
    """First message of a viewer."""

    version: tuple[int, int]
    viewer: str
    """Stable id of this viewer process."""
    issuer: str
    """Who sits there, such as `ann@laptop`."""
    read_only: bool = False


class FetchHistory(ClientMessage, frozen=True, kw_only=True, tag="FetchHistory"):
    """Ask for the journal after a sequence number; one chunk is answered."""

    after_seq: int
    max_bytes: int = 512 * 1024


class SubmitCommand(ClientMessage, frozen=True, kw_only=True, tag="SubmitCommand"):
    """Ask the run to do something. Sending the same id again repeats the reply, not the deed."""

    id: str
    command: AnyCommand
    viewer: str
    issuer: str
    reason: str = ""
    expires_at: float | None = None
    """Unix seconds; refused when it arrives later."""
    if_generation: int | None = None
    """Settings generation that a relative change was made for; refused at any other."""
    one_shot: bool = False
    """From a script that leaves after this command: it does not become the controller."""


class TakeControl(ClientMessage, frozen=True, kw_only=True, tag="TakeControl"):
    """Become the one viewer whose commands count."""

    viewer: str
    issuer: str
    if_free: bool = False
    """Only where nobody else has control: so a viewer keeps it through the end of a hub."""


class ReleaseControl(ClientMessage, frozen=True, kw_only=True, tag="ReleaseControl"):
    """Give control up."""

    viewer: str


class Ping(ClientMessage, frozen=True, kw_only=True, tag="Ping"):
    """Liveness of the hub itself."""


class FetchReport(ClientMessage, frozen=True, kw_only=True, tag="FetchReport"):
    """Ask for an anomaly report by its name."""

    report: str


class FetchConfig(ClientMessage, frozen=True, kw_only=True, tag="FetchConfig"):
    """Ask for the configuration, as written and as resolved."""


AnyClientMessage = (
    FetchReport
    | FetchConfig
    | Hello
    | FetchHistory
    | SubmitCommand
    | TakeControl
    | ReleaseControl
    | Ping
)


class HubMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="k"):
    """Hub → viewer; `ref` names the message it answers."""

    ref: int


class Welcome(HubMessage, frozen=True, kw_only=True, tag="Welcome"):
    """Answer to `Hello`."""

    version: tuple[int, int]
    run: str
    """Run id: the name of the run directory."""
    incarnation: int
    last_seq: int
    controller: str | None = None
    """Issuer who holds control; None when nobody does."""


class HistoryChunk(HubMessage, frozen=True, kw_only=True, tag="HistoryChunk"):
    """A run of records with consecutive sequence numbers."""

    first_seq: int
    """0 when empty."""
    last_seq: int
    """Equals the asked `after_seq` when empty."""
    head_seq: int
    """Newest sequence number in the journal when this was read."""
    blob: bytes = b""
    """zlib-compressed; inside, each record is a u32 little-endian length, then its MessagePack."""


class Accepted(HubMessage, frozen=True, kw_only=True, tag="Accepted"):
    """The command is in the control journal, synced; its effect follows as an event."""

    id: str


class Rejected(HubMessage, frozen=True, kw_only=True, tag="Rejected"):
    """The command will never have an effect."""

    id: str
    reason: str


class ControlGiven(HubMessage, frozen=True, kw_only=True, tag="ControlGiven"):
    """Who holds control now."""

    controller: str | None


class Pong(HubMessage, frozen=True, kw_only=True, tag="Pong"):
    """Answer to `Ping`."""


class ReportText(HubMessage, frozen=True, kw_only=True, tag="ReportText"):
    """Answer to `FetchReport`."""

    report: str
    markdown: str


class ConfigTexts(HubMessage, frozen=True, kw_only=True, tag="ConfigTexts"):
    """Answer to `FetchConfig`: two YAML files and what the command line put over them."""

    resolved: str
    source: str
    overrides: list[str] = []
    """Such as `train.lr=1e-4`."""


class Refused(HubMessage, frozen=True, kw_only=True, tag="Refused"):
    """A message that could not be served: wrong version, malformed, too large."""

    reason: str


AnyHubMessage = (
    ReportText
    | ConfigTexts
    | Welcome
    | HistoryChunk
    | Accepted
    | Rejected
    | ControlGiven
    | Pong
    | Refused
)


class Beat(msgspec.Struct, frozen=True, kw_only=True):
    """Published by the hub once a second, outside the journal."""

    time: float
    last_seq: int
    engine_alive: bool
    engine_pid: int | None = None
    state: RunState = RunState.STARTING
    controller: str | None = None
    """Issuer who holds control."""
    controller_viewer: str | None = None
    viewers: int = 0
    generation: int = 0
    """Generation of the settings: the number of changes so far, accepted or recorded."""
    engine_log_tail: list[str] = []
    """Last lines of the engine log; only when the engine is gone without a word."""
    disk_free_bytes: int | None = None
    """Room where the run folder is; it comes to viewers even when nothing can be written."""
