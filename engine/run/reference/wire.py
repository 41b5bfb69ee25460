"""The page of the protocol between viewers, hub and bridge, generated from `engine/protocol/`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import get_args

import msgspec

from ...protocol.codec import (
    BEAT_TOPIC,
    EVENT_TOPIC,
    MAX_HISTORY_BYTES,
    PROTOCOL_VERSION,
)
from ...protocol.commands import COMMANDS
from ...protocol.data.sample import SampleRecord, SampleSpan, SampleText, SampleToken
from ...protocol.requests import AnyClientMessage, AnyHubMessage, Beat
from ...protocol.ssh_protocol import (
    MAGIC,
    MAX_FRAME_BYTES,
    MAX_MESSAGE_BYTES,
    MAX_NOISE_BYTES,
    BridgeMessage,
    BridgeRequest,
    FrameKind,
    Greeting,
    JournalPosition,
)
from .tables import row, struct_section

_MIB = 2**20
_INTRO = f"""\
# Protocol

How a program watches and controls a run: protocol version {
    ".".join(map(str, PROTOCOL_VERSION))
}. All messages are MessagePack maps whose field `k` names the kind. Peers of the
same major version understand each other: a higher minor version only adds kinds, and fields with
defaults. Skip the fields and kinds that you do not know. Another major version is refused, and
the refusal names both. Generated from `engine/protocol/` with `python -m
fttui.engine.run.reference docs/reference`.

## On the machine of the run

`endpoint.json` in the [run folder](run-folder.md#endpoint) names a private folder with two
ZeroMQ sockets, which accept your user alone:

- `pub` (PUB): the topic `{EVENT_TOPIC.decode()}` with a [record](events.md#record) per message,
  and the topic `{BEAT_TOPIC.decode()}` with a [heartbeat](#beat) each second.
- `req` (ROUTER): a request gets one reply with the same `ref`. The first request is
  [Hello](#hello).

To miss nothing, subscribe first, then ask for the history after the last `seq` you have, and
merge by `seq`. The records of one [HistoryChunk](#historychunk) have at most {
    MAX_HISTORY_BYTES // _MIB
} MiB. A command has an id of your choice; sending it again repeats the answer and not the
effect. *Accepted* means that it is on disk. Its outcome is an event: CommandApplied or
CommandFailed, with the same id.

## Through ssh

`fttui bridge`, started by ssh, speaks the same over its standard input and output. It first
sends the 16 bytes `{MAGIC!r}`, after at most {MAX_NOISE_BYTES // 1024} KiB of whatever the login
shell prints. Then both sides send frames of `u32 length | u8 kind | payload`, little-endian, of
at most {MAX_FRAME_BYTES // _MIB} MiB; a message of at most {MAX_MESSAGE_BYTES // _MIB} MiB is
split into frames of kind MORE and a last one of its own kind.
"""


def wire_page() -> str:
    """Return the Markdown text of docs/reference/wire.md."""
    requests: tuple[type[msgspec.Struct], ...] = get_args(AnyClientMessage)
    replies: tuple[type[msgspec.Struct], ...] = get_args(AnyHubMessage)
    bridge: list[type[msgspec.Struct]] = [Greeting, JournalPosition]
    bridge += [*get_args(BridgeRequest), *get_args(BridgeMessage)]
    sample: tuple[type[msgspec.Struct], ...] = (SampleRecord, SampleText, SampleToken, SampleSpan)
    commands: list[type[msgspec.Struct]] = [spec.command for spec in COMMANDS]
    groups: dict[str, Iterable[type[msgspec.Struct]]] = {
        "Requests of a viewer": requests,
        "Replies of the hub": replies,
        "Records as the model sees them": sample,
        "Heartbeat": (Beat,),
        "Commands": dict.fromkeys(commands),
        "Messages of the bridge": dict.fromkeys(bridge),
    }
    linked = frozenset(struct.__name__ for group in groups.values() for struct in group)
    lines = [_INTRO, "| kind of frame | number | payload |", "|---|---|---|"]
    payloads = {
        FrameKind.GREETING: "[Greeting](#greeting) as JSON, the first frame of the bridge",
        FrameKind.TALK: "a [message of the bridge](#messages-of-the-bridge)",
        FrameKind.HUB: "a [request](#requests-of-a-viewer), or the [reply](#replies-of-the-hub)",
        FrameKind.BEAT: "a [heartbeat](#beat)",
        FrameKind.MORE: "a part of a payload that the next frame continues",
    }
    lines += [row(kind.name, str(int(kind)), payloads[kind]) for kind in FrameKind]
    lines.append("")
    for title, group in groups.items():
        lines.append(f"## {title}\n")
        for struct in group:
            lines += struct_section(struct, "###", linked)
    return "\n".join(lines).rstrip() + "\n"
