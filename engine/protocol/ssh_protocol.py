"""What a viewer on another machine and `fttui bridge` say to each other over one byte stream.

The bridge opens with 16 bytes of magic, so that whatever a login shell prints before can be told
apart. Then both sides send frames of `u32 length | u8 channel | payload`, little-endian. The first
frame of the bridge is a JSON greeting that any version can read; a payload too long for one frame
is cut, its first parts travelling on the channel MORE.

Records come strictly in the order of the journal, as many as the viewer has acknowledged room for:
what a slow link cannot take yet waits in the journal, never in a queue.
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
"""What a login shell may print before the magic."""
BEAT_S = 1.0
_HEAD = struct.Struct("<IB")


class FrameKind(IntEnum):
    """What a frame's payload is."""

    GREETING = 0
    """JSON of `Greeting`."""
    TALK = 1
    """A message of this module, MessagePack."""
    HUB = 2
    """A viewer's request or the reply to it, as between a viewer and the hub."""
    BEAT = 3
    """The hub's heartbeat."""
    MORE = 4
    """The beginning of the next frame's payload."""


class Greeting(msgspec.Struct, frozen=True, kw_only=True):
    """The bridge's first words."""

    proto: tuple[int, int] = PROTOCOL_VERSION
    version: str = ""
    """Of fttui on the far side."""
    host: str = ""
    read_only: bool = False
    """The far side lets this viewer only watch."""


class JournalPosition(msgspec.Struct, frozen=True, kw_only=True):
    """A record in the journal, by what it is and by where it is."""

    seq: int
    crc: int
    """crc32 of the encoded record."""
    offset: int
    """Where its frame begins in the journal file; a hint."""


class _BridgeProtocol(msgspec.Struct, frozen=True, kw_only=True, tag_field="k"):
    pass


class ListRuns(_BridgeProtocol, frozen=True, kw_only=True, tag="ListRuns"):
    """Viewer → bridge: which runs are there?"""


class Open(_BridgeProtocol, frozen=True, kw_only=True, tag="Open"):
    """Viewer → bridge: serve this run from here on."""

    version: tuple[int, int]
    viewer: str
    issuer: str
    run: str | None = None
    """Name, unique beginning or folder; None for the newest live run."""
    read_only: bool = False
    one_shot: bool = False
    """From a script: no history, only news."""
    seen: JournalPosition | None = None
    """The newest record the viewer has; None for none."""


class Received(_BridgeProtocol, frozen=True, kw_only=True, tag="Received"):
    """Viewer → bridge, at least once a second: how much of the stream has arrived."""

    total_bytes: int


class Runs(_BridgeProtocol, frozen=True, kw_only=True, tag="Runs"):
    """Bridge → viewer: answer to `ListRuns`."""

    table: bytes
    """MessagePack of a list of `RunSummary`, newest first."""


class Opened(_BridgeProtocol, frozen=True, kw_only=True, tag="Opened"):
    """Bridge → viewer: the run is served; records after `from_seq` follow."""

    run: str
    incarnation: int
    timeline: int
    from_seq: int
    last_seq: int
    state: RunState
    engine_alive: bool
    time: float
    """The far side's clock, Unix seconds."""
    why_read_only: str = ""
    """Empty when this viewer may ask for commands."""


class Failed(_BridgeProtocol, frozen=True, kw_only=True, tag="Failed"):
    """Bridge → viewer: it cannot go on; it exits with `code`."""

    code: int
    reason: str


class Records(_BridgeProtocol, frozen=True, kw_only=True, tag="Records"):
    """Bridge → viewer: the next records of the journal."""

    block: bytes
    """`packing.pack_block` of the encoded records."""
    head_seq: int
    """Newest sequence number known to be in the journal."""
    offset: int
    """Where the frame of the last of them begins."""


class Preview(_BridgeProtocol, frozen=True, kw_only=True, tag="Preview"):
    """Bridge → viewer: a thinned picture of records still to come; real records, with holes."""

    block: bytes
    head_seq: int
    exact: bool = False
    extends: bool = False


class Pulse(_BridgeProtocol, frozen=True, kw_only=True, tag="Pulse"):
    """Bridge → viewer, once a second."""

    time: float
    head_seq: int
    served: bool
    """The run's hub is there to take commands."""
    engine_alive: bool


BridgeRequest = ListRuns | Open | Received
BridgeMessage = Runs | Opened | Failed | Records | Preview | Pulse

_bridge_requests: msgspec.msgpack.Decoder[BridgeRequest] = msgspec.msgpack.Decoder(BridgeRequest)
_bridge_messages: msgspec.msgpack.Decoder[BridgeMessage] = msgspec.msgpack.Decoder(BridgeMessage)


def decode_bridge_request(data: bytes) -> BridgeRequest:
    """What a viewer says to the bridge."""
    try:
        return _bridge_requests.decode(data)
    except UNDECODABLE as error:
        raise DecodeError(str(error)) from None


def decode_bridge_message(data: bytes) -> BridgeMessage | None:
    """What the bridge says to a viewer; None for a kind this version does not know."""
    try:
        return _bridge_messages.decode(data)
    except UNDECODABLE as error:
        if "Invalid value" in str(error):
            return None
        raise DecodeError(str(error)) from None


def frames_of(channel: FrameKind, payload: bytes) -> bytes:
    """One message as frames, ready to send."""
    parts = []
    while len(payload) > MAX_FRAME_BYTES:
        parts.append(_HEAD.pack(MAX_FRAME_BYTES, FrameKind.MORE) + payload[:MAX_FRAME_BYTES])
        payload = payload[MAX_FRAME_BYTES:]
    parts.append(_HEAD.pack(len(payload), channel) + payload)
    return b"".join(parts)


class FrameParser:
    """Bytes as they come to whole messages."""

    def __init__(self, *, expect_magic: bool) -> None:
        self._data = bytearray()
        self._more = b""
        self._awaits_magic = expect_magic
        self._parsed_bytes = 0
        self.noise = b""
        """What came before the magic."""

    @property
    def greeted(self) -> bool:
        """The magic has been seen, or none is expected."""
        return not self._awaits_magic

    @property
    def received_bytes(self) -> int:
        """Everything that came after the magic."""
        return 0 if self._awaits_magic else self._parsed_bytes + len(self._data)

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """Take bytes in; returns (channel, payload) of every message that is now complete.

        Raises:
            DecodeError: this is no bridge, or it sends nonsense.
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
                raise DecodeError(f"a frame of {length} bytes; at most {MAX_FRAME_BYTES} are sent")
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
        """The whole message, once its last part is here."""
        if len(self._more) + len(payload) > MAX_MESSAGE_BYTES:
            raise DecodeError(f"a message of over {MAX_MESSAGE_BYTES} bytes")
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
            raise DecodeError(f"{MAX_NOISE_BYTES} bytes of something else, no bridge")
        return found >= 0
