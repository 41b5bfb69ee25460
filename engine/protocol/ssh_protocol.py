"""The protocol between a viewer and `fttui bridge` on a remote host: messages and frames.

The bridge first sends 16 magic bytes, which mark the end of any output of the login shell. Then
both sides send frames of `u32 length | u8 kind | payload`, little-endian. The first frame of the
bridge is a JSON greeting that any version can read. A payload too long for one frame is split, and
all its parts but the last are frames of kind MORE.

Records are sent in the order of the journal, and only as many as the flow control allows. Records
that a slow link cannot take yet stay in the journal, not in a queue.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum

import msgspec

from .codec import PROTOCOL_VERSION, UNDECODABLE, DecodeError
from .states import RunState

MAGIC = b"\x00\x01FTTUI-BRIDGE\r\n"
MAX_FRAME_BYTES = 1024 * 1024
MAX_MESSAGE_BYTES = 32 * 1024 * 1024
MAX_NOISE_BYTES = 64 * 1024
"""Most bytes that a login shell may print before the magic bytes."""
BEAT_S = 1.0
_HEAD = struct.Struct("<IB")


class FrameKind(IntEnum):
    """The kind of a frame's payload."""

    GREETING = 0
    """A `Greeting` as JSON."""
    TALK = 1
    """A message of this module as MessagePack."""
    HUB = 2
    """A request of `protocol.requests`, or the reply to it."""
    BEAT = 3
    """A heartbeat of the run."""
    MORE = 4
    """A part of a payload that the next frame continues."""


class Greeting(msgspec.Struct, frozen=True, kw_only=True):
    """The first message of the bridge."""

    proto: tuple[int, int] = PROTOCOL_VERSION
    version: str = ""
    """The version of fttui on the remote host."""
    host: str = ""
    read_only: bool = False
    """Whether the remote host allows this viewer only to watch."""


class JournalPosition(msgspec.Struct, frozen=True, kw_only=True):
    """The position of a record in the journal, with a hash that identifies the record."""

    seq: int
    crc: int
    """crc32 of the encoded record."""
    offset: int
    """Offset of its frame in the journal file; only a hint."""


class _BridgeProtocolMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="k"):
    pass


class ListRuns(_BridgeProtocolMessage, frozen=True, kw_only=True, tag="ListRuns"):
    """Viewer → bridge: list the runs."""


class Open(_BridgeProtocolMessage, frozen=True, kw_only=True, tag="Open"):
    """Viewer → bridge: open this run and send its journal."""

    version: tuple[int, int]
    viewer: str
    issuer: str
    run: str | None = None
    """A name, the unique beginning of one, or a folder; None for the newest live run."""
    read_only: bool = False
    one_shot: bool = False
    """Whether a script sends only one command; it gets new records but no history."""
    seen: JournalPosition | None = None
    """The newest record that the viewer has; None if it has none."""


class Received(_BridgeProtocolMessage, frozen=True, kw_only=True, tag="Received"):
    """Viewer → bridge, at least once a second: the number of bytes received so far."""

    total_bytes: int


class Runs(_BridgeProtocolMessage, frozen=True, kw_only=True, tag="Runs"):
    """Bridge → viewer: the reply to `ListRuns`."""

    table: bytes
    """A list of `RunSummary` as MessagePack, newest run first."""


class Opened(_BridgeProtocolMessage, frozen=True, kw_only=True, tag="Opened"):
    """Bridge → viewer: the run is served; records after `from_seq` follow."""

    run: str
    incarnation: int
    timeline: int
    from_seq: int
    last_seq: int
    state: RunState
    engine_alive: bool
    time: float
    """The clock of the remote host, in Unix seconds."""
    why_read_only: str = ""
    """Why this viewer may not send commands; empty if it may."""
    boot: str = ""
    """Boot id of the remote host; empty from older versions."""
    boot_s: float = 0.0
    """Uptime of the remote host in seconds."""
    lr_schedule: float | None = None
    """Learning rate of the schedule at the newest step; None before it and from older versions."""
    lr_scale: float = 1.0
    """Factor on the schedule."""


class Failed(_BridgeProtocolMessage, frozen=True, kw_only=True, tag="Failed"):
    """Bridge → viewer: the bridge failed and exits with `code`."""

    code: int
    reason: str


class Records(_BridgeProtocolMessage, frozen=True, kw_only=True, tag="Records"):
    """Bridge → viewer: the next records of the journal."""

    block: bytes
    """The encoded records, packed by `record_blocks.pack_block`."""
    head_seq: int
    """The newest sequence number known to be in the journal."""
    offset: int
    """Offset of the last record's frame."""


class Preview(_BridgeProtocolMessage, frozen=True, kw_only=True, tag="Preview"):
    """Bridge → viewer: some of the records still to be sent, so that it can draw curves at once."""

    block: bytes
    head_seq: int
    exact: bool = False
    """Whether the records are the extremes of each of many parts of the history; else they are
    evenly spaced samples."""
    extends: bool = False
    """Whether the records extend the preview before, rather than replace it."""


class Pulse(_BridgeProtocolMessage, frozen=True, kw_only=True, tag="Pulse"):
    """Bridge → viewer, once a second: the state of the bridge."""

    time: float
    head_seq: int
    served: bool
    """Whether a hub serves the run and accepts commands."""
    engine_alive: bool


BridgeRequest = ListRuns | Open | Received
BridgeMessage = Runs | Opened | Failed | Records | Preview | Pulse

_bridge_requests: msgspec.msgpack.Decoder[BridgeRequest] = msgspec.msgpack.Decoder(BridgeRequest)
_bridge_messages: msgspec.msgpack.Decoder[BridgeMessage] = msgspec.msgpack.Decoder(BridgeMessage)


def decode_bridge_request(data: bytes) -> BridgeRequest:
    """Decode a viewer's message to the bridge; raises DecodeError if it is invalid."""
    try:
        return _bridge_requests.decode(data)
    except UNDECODABLE as error:
        raise DecodeError(str(error)) from None


def decode_bridge_message(data: bytes) -> BridgeMessage | None:
    """Decode a message of the bridge; None if its tag is unknown to this version.

    Raises:
        DecodeError: the bytes are not a message.
    """
    try:
        return _bridge_messages.decode(data)
    except UNDECODABLE as error:
        if "Invalid value" in str(error):
            return None
        raise DecodeError(str(error)) from None


def frames_of(channel: FrameKind, payload: bytes) -> bytes:
    """Return a message of kind `channel` as the bytes of one frame, or of several if it is long."""
    parts = []
    while len(payload) > MAX_FRAME_BYTES:
        parts.append(_HEAD.pack(MAX_FRAME_BYTES, FrameKind.MORE) + payload[:MAX_FRAME_BYTES])
        payload = payload[MAX_FRAME_BYTES:]
    parts.append(_HEAD.pack(len(payload), channel) + payload)
    return b"".join(parts)


class FrameParser:
    """Assembles received bytes into whole messages."""

    def __init__(self, *, expect_magic: bool) -> None:
        self._data = bytearray()
        self._more = b""
        self._awaits_magic = expect_magic
        self._parsed_bytes = 0
        self.noise = b""
        """The bytes before the magic bytes, such as output of the login shell."""

    @property
    def greeted(self) -> bool:
        """Whether the magic bytes have arrived, or none are expected."""
        return not self._awaits_magic

    @property
    def received_bytes(self) -> int:
        """Number of bytes received after the magic bytes."""
        return 0 if self._awaits_magic else self._parsed_bytes + len(self._data)

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """Add bytes and return (kind, payload) of every message that is now complete.

        Raises:
            DecodeError: the peer is not a bridge, or its frames are invalid.
        """
        self._data += data
        if self._awaits_magic and not self._skip_noise():
            return []
        return list(self._messages())

    def _messages(self) -> Iterator[tuple[int, bytes]]:
        at = 0
        while len(self._data) - at >= _HEAD.size:
            length, channel = _HEAD.unpack_from(self._data, at)
            if length > MAX_FRAME_BYTES:
                raise DecodeError(f"a frame of {length} bytes, expected at most {MAX_FRAME_BYTES}")
            start, at_end = at + _HEAD.size, at + _HEAD.size + length
            if at_end > len(self._data):
                break
            at = at_end
            whole = self._joined(channel, bytes(self._data[start:at_end]))
            if whole is not None:
                yield channel, whole
        del self._data[:at]
        self._parsed_bytes += at

    def _joined(self, channel: int, payload: bytes) -> bytes | None:
        """Add the payload of one frame to its message; return the message if this completes it.

        None while further parts of the message are to come.

        Raises:
            DecodeError: the message is larger than `MAX_MESSAGE_BYTES`.
        """
        if len(self._more) + len(payload) > MAX_MESSAGE_BYTES:
            raise DecodeError(f"a message is larger than the limit of {MAX_MESSAGE_BYTES} bytes")
        whole = self._more + payload
        self._more = whole if channel == FrameKind.MORE else b""
        return None if channel == FrameKind.MORE else whole

    def _skip_noise(self) -> bool:
        found = self._data.find(MAGIC)
        self.noise = bytes(self._data[: found if found >= 0 else MAX_NOISE_BYTES])
        if found >= 0:
            del self._data[: found + len(MAGIC)]
            self._awaits_magic = False
        elif len(self._data) > MAX_NOISE_BYTES + len(MAGIC):
            raise DecodeError(
                f"no bridge: its magic bytes are not in the first {MAX_NOISE_BYTES} bytes"
            )
        return found >= 0
