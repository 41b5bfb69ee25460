"""Requests of viewers, replies of the hub, and the heartbeat."""

from __future__ import annotations

import msgspec

from .commands import AnyCommand
from .data.sample import SampleRecord
from .settings import AgentMode
from .states import RunState


class ClientMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="k"):
    """A request of a viewer to the hub."""

    ref: int
    """The number of the request, which its reply repeats."""


class Hello(ClientMessage, frozen=True, kw_only=True, tag="Hello"):
    """The first message of a viewer."""

    version: tuple[int, int]
    viewer: str
    """The id of the viewer process, the same over reconnections."""
    issuer: str
    """The user and machine of the viewer, such as `ann@laptop`."""
    read_only: bool = False


class FetchHistory(ClientMessage, frozen=True, kw_only=True, tag="FetchHistory"):
    """Ask for records after a sequence number; the reply is one `HistoryChunk`."""

    after_seq: int
    max_bytes: int = 512 * 1024


class SubmitCommand(ClientMessage, frozen=True, kw_only=True, tag="SubmitCommand"):
    """Submit a command; a repeated id gets the same reply and has no second effect."""

    id: str
    command: AnyCommand
    viewer: str
    issuer: str
    reason: str = ""
    expires_at: float | None = None
    """Unix seconds after which the command is refused; None for no limit.

    It counts only if the hub cannot use `expires_boot_s`, which does not depend on the clock.
    """
    expires_boot_s: float | None = None
    """Seconds since the hub's machine started after which the command is refused."""
    boot: str = ""
    """Boot id of the machine whose uptime `expires_boot_s` refers to; empty if it is not known."""
    if_generation: int | None = None
    """Settings generation that a relative change was made for; refused at any other."""
    one_shot: bool = False
    """Whether the viewer sends only this command, as a script does, and so gets no control."""
    take: bool = False
    """Whether the command is to be accepted although another viewer has control, which that viewer
    then loses. A hub that does not know the field refuses such a command and names the viewer."""
    agent: AgentMode | None = None
    """What the agent that sends it may do; None if a person or a script sends it.

    Agents send nothing to a hub whose version is below `AGENTS_SINCE`, which ignores the field.
    """


class TakeControl(ClientMessage, frozen=True, kw_only=True, tag="TakeControl"):
    """Become the controller, the only viewer whose commands are accepted."""

    viewer: str
    issuer: str
    if_free: bool = False
    """Whether to take control only if nobody has it, as a viewer does after the hub restarted."""


class ReleaseControl(ClientMessage, frozen=True, kw_only=True, tag="ReleaseControl"):
    """Release control, if this viewer has it."""

    viewer: str


class Ping(ClientMessage, frozen=True, kw_only=True, tag="Ping"):
    """Check that the hub answers, and announce that the viewer is connected."""


class FetchReport(ClientMessage, frozen=True, kw_only=True, tag="FetchReport"):
    """Ask for an anomaly report by its name."""

    report: str


class FetchConfig(ClientMessage, frozen=True, kw_only=True, tag="FetchConfig"):
    """Ask for the configuration of the run, as written and as resolved."""


class FetchDataSample(ClientMessage, frozen=True, kw_only=True, tag="FetchDataSample"):
    """Ask for the first training records as the model sees them."""


AnyClientMessage = (
    FetchReport
    | FetchConfig
    | FetchDataSample
    | Hello
    | FetchHistory
    | SubmitCommand
    | TakeControl
    | ReleaseControl
    | Ping
)


class HubMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="k"):
    """A reply of the hub to a viewer."""

    ref: int
    """The number of the request it answers."""


class Welcome(HubMessage, frozen=True, kw_only=True, tag="Welcome"):
    """The reply to `Hello`."""

    version: tuple[int, int]
    run: str
    """The run id, which is the name of the run folder."""
    incarnation: int
    last_seq: int
    controller: str | None = None
    """The issuer who has control; None if nobody has."""


class HistoryChunk(HubMessage, frozen=True, kw_only=True, tag="HistoryChunk"):
    """The reply to `FetchHistory`: the next records of the journal, in order."""

    first_seq: int
    """0 if there are no records."""
    last_seq: int
    """Equal to the requested `after_seq` if there are no records."""
    head_seq: int
    """The newest sequence number in the journal at the time of reading."""
    blob: bytes = b""
    """zlib-compressed; each record is a little-endian u32 length and its MessagePack bytes."""


class Accepted(HubMessage, frozen=True, kw_only=True, tag="Accepted"):
    """The command is stored durably in the control journal; an event reports its effect."""

    id: str
    unjournaled: str = ""
    """Why the command is obeyed without the control journal; empty if it is stored there.

    Only a stop is, because a run on a full disk must be able to end. No event reports its effect.
    """


class Rejected(HubMessage, frozen=True, kw_only=True, tag="Rejected"):
    """The command was refused and will never have an effect."""

    id: str
    reason: str


class ControlGiven(HubMessage, frozen=True, kw_only=True, tag="ControlGiven"):
    """The reply to `TakeControl` and `ReleaseControl`: who has control now."""

    controller: str | None


class Pong(HubMessage, frozen=True, kw_only=True, tag="Pong"):
    """The reply to `Ping`."""


class ReportText(HubMessage, frozen=True, kw_only=True, tag="ReportText"):
    """The reply to `FetchReport`."""

    report: str
    markdown: str


class ConfigTexts(HubMessage, frozen=True, kw_only=True, tag="ConfigTexts"):
    """The reply to `FetchConfig`: two YAML texts and the overrides of the command line."""

    resolved: str
    source: str
    overrides: list[str] = []
    """Such as `train.lr=1e-4`."""


class DataSampleRecords(HubMessage, frozen=True, kw_only=True, tag="DataSampleRecords"):
    """The reply to `FetchDataSample`; it has no records if the run keeps no sample."""

    records: list[SampleRecord]


class Refused(HubMessage, frozen=True, kw_only=True, tag="Refused"):
    """The reply to a request that cannot be served, such as a `Hello` of another major version."""

    reason: str


AnyHubMessage = (
    ReportText
    | ConfigTexts
    | DataSampleRecords
    | Welcome
    | HistoryChunk
    | Accepted
    | Rejected
    | ControlGiven
    | Pong
    | Refused
)


class Beat(msgspec.Struct, frozen=True, kw_only=True):
    """The heartbeat of a run: published by its hub once a second, not in the journal."""

    time: float
    last_seq: int
    engine_alive: bool
    engine_pid: int | None = None
    state: RunState = RunState.STARTING
    controller: str | None = None
    """The issuer who has control; None if nobody has."""
    controller_viewer: str | None = None
    viewers: int = 0
    generation: int = 0
    """Generation of the settings: the number of changes so far, accepted or recorded."""
    engine_log_tail: list[str] = []
    """The last lines of the engine log if the state is lost, else empty."""
    disk_free_bytes: int | None = None
    """Free disk space at the run folder; a heartbeat reports it even when the disk is full."""
    checkpoint_copies: dict[str, str] = {}
    """Copies of checkpoints that a user made: name of the copy → name of the checkpoint."""
    damaged_bytes: int = 0
    """Damaged bytes of the journal that were left out; counted only if no engine writes it."""
