"""Golden bytes: what was once written or sent can be read for ever, and is still written so.

`golden/wire.hex` has a line per message. A field or message added later gets a new line at the end:
`python -m tests.contract.test_wire` appends what is new and never touches a line.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from fttui.engine.protocol.codec import (
    PROTOCOL_VERSION,
    DecodeError,
    decode_beat,
    decode_client,
    decode_hub,
    decode_readable,
    decode_record,
    encode,
)
from fttui.engine.protocol.commands import Pause, ScaleLr
from fttui.engine.protocol.event_parts import RecommendedCommand
from fttui.engine.protocol.events import (
    AnomalyRaised,
    CommandApplied,
    StepFinished,
)
from fttui.engine.protocol.requests import AnyClientMessage
from fttui.engine.protocol.ssh_protocol import (
    MAGIC,
    BridgeMessage,
    BridgeRequest,
    FrameKind,
    Greeting,
    decode_bridge_message,
    decode_bridge_request,
    frames_of,
)

from .examples import all_messages, record

GOLDEN = Path(__file__).parent / "golden" / "wire.hex"
MESSAGES = all_messages()


def golden() -> list[tuple[str, bytes]]:
    lines = GOLDEN.read_text(encoding="ascii").splitlines()
    return [(name, bytes.fromhex(data)) for name, data in map(str.split, lines)]


def decoder(message: msgspec.Struct) -> Callable[[bytes], msgspec.Struct | None]:
    if type(message).__name__ == "Beat":
        return decode_beat
    if type(message).__name__ == "Record":
        return decode_record
    if isinstance(message, BridgeRequest):
        return decode_bridge_request
    if isinstance(message, BridgeMessage):
        return decode_bridge_message
    return decode_client if isinstance(message, AnyClientMessage) else decode_hub


@pytest.mark.parametrize("name", MESSAGES)
def test_encoding_is_byte_stable(name: str) -> None:
    newest = dict(golden())
    assert name in newest, "run: python -m tests.contract.test_wire"
    assert encode(MESSAGES[name]) == newest[name]


@pytest.mark.parametrize("name", MESSAGES)
def test_every_message_survives_the_trip(name: str) -> None:
    message = MESSAGES[name]
    assert decoder(message)(encode(message)) == message


def test_old_bytes_still_decode() -> None:
    for name, data in golden():
        assert name in MESSAGES, f"{name} was taken out: that needs a new major version"
        again = decoder(MESSAGES[name])(data)
        assert type(again) is type(MESSAGES[name])


def test_unknown_fields_and_events_are_no_error() -> None:
    event = msgspec.to_builtins(MESSAGES["Record/NoteAdded"])
    event[4]["of a later version"] = 1
    assert decode_record(msgspec.msgpack.encode(event)) == MESSAGES["Record/NoteAdded"]
    event[4]["k"] = "OfALaterVersion"
    assert decode_record(msgspec.msgpack.encode(event)) is None


def test_readers_of_a_whole_journal_skip_what_is_no_record() -> None:
    known, unknown = MESSAGES["Record/NoteAdded"], msgspec.to_builtins(MESSAGES["Record/NoteAdded"])
    unknown[4]["k"] = "OfALaterVersion"
    broken = [b"", b"\xc1", encode(known)[:-1], msgspec.msgpack.encode([1, 2])]
    tags: list[object] = [[], {}, 3, None]
    broken += [msgspec.msgpack.encode([1, 0.0, 0, 1, {"k": tag}]) for tag in tags]
    assert decode_readable(encode(known)) == known
    assert decode_readable(msgspec.msgpack.encode(unknown)) is None
    assert [decode_readable(data) for data in broken] == [None] * len(broken)
    for data in broken:
        with pytest.raises(DecodeError):
            decode_record(data)


@pytest.mark.parametrize(
    "newer",
    [
        {"applied": {"k": "OfALaterVersion", "factor": 2.0}},
        {"applied": {"k": "ScaleLr", "factor": "half"}},
        {"settings": {"lr_scale": [1.0]}},
        {"applied": {"k": "OfALaterVersion"}, "previous": 3},
    ],
)
def test_an_applied_command_of_a_later_version_keeps_its_text(newer: dict[str, object]) -> None:
    old = CommandApplied(id="c1", command="warmup again 20", old="a", new="b", issuer="ann")
    plain = msgspec.to_builtins(record(old))
    plain[4].update(newer)
    again = decode_record(msgspec.msgpack.encode(plain))
    assert again == record(old)
    assert (old.typed, old.spec) == (None, None)


@pytest.mark.parametrize(
    "newer", [{"k": "OfALaterVersion", "share": 0.5}, {"k": "ScaleLr", "factor": "half"}, 3]
)
def test_recommended_commands_of_a_later_version_keep_their_texts(newer: object) -> None:
    told = [
        RecommendedCommand(text="warmup again 20", why="Warms up."),
        RecommendedCommand(text="pause", why="Waits.", command=Pause()),
    ]
    raised = AnomalyRaised(id="a", kind="spike", severity="alarm", headline="h", recommended=told)
    plain = msgspec.to_builtins(record(raised))
    plain[4]["recommended"][0]["command"] = newer
    again = decode_record(msgspec.msgpack.encode(plain))
    assert again is not None
    assert isinstance(again.event, AnomalyRaised)
    assert [(way.text, way.why) for way in again.event.ways] == [
        ("warmup again 20", "Warms up."), ("pause", "Waits."),
    ]  # fmt: skip
    assert [way.typed for way in again.event.ways] == [None, Pause()]


def test_recommended_commands_of_an_older_version_are_read_from_their_texts() -> None:
    old = AnomalyRaised(
        id="a", kind="spike", severity="alarm", headline="h", actions=["lr scale 0.5", "odd"]
    )
    assert [(way.text, way.typed) for way in old.ways] == [
        ("lr scale 0.5", ScaleLr(factor=0.5)), ("odd", None),
    ]  # fmt: skip


def test_text_that_is_none_is_still_no_record() -> None:
    plain = msgspec.to_builtins(record(CommandApplied(id="c1", command="pause")))
    plain[4]["command"] = 3
    with pytest.raises(DecodeError):
        decode_record(msgspec.msgpack.encode(plain))


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_none_travel(loss: float) -> None:
    again = decode_record(encode(record(StepFinished(loss=loss, grad_norm=loss))))
    assert again is not None
    assert isinstance(again.event, StepFinished)
    assert repr(again.event.loss) == repr(again.event.grad_norm) == repr(loss)


def test_the_first_words_of_a_bridge_are_readable_by_any_version() -> None:
    greeting = Greeting(proto=(1, 0), version="0.1", host="box", read_only=True)
    data = MAGIC + frames_of(FrameKind.GREETING, msgspec.json.encode(greeting))
    assert data == (
        b"\x00\x01FTTUI-BRIDGE\r\n"
        b"\x3d\x00\x00\x00\x00"
        b'{"proto":[1,0],"version":"0.1","host":"box","read_only":true}'
    )
    assert [(channel.name, int(channel)) for channel in FrameKind] == [
        ("GREETING", 0), ("TALK", 1), ("HUB", 2), ("BEAT", 3), ("MORE", 4),
    ]  # fmt: skip


def test_the_version_is_a_pair() -> None:
    major, minor = PROTOCOL_VERSION
    assert major >= 1
    assert minor >= 0


def append_new() -> None:
    """Add a line for every message whose bytes are not the newest golden ones."""
    known = dict(golden()) if GOLDEN.exists() else {}
    GOLDEN.parent.mkdir(exist_ok=True)
    with GOLDEN.open("a", encoding="ascii") as file:
        for name, message in MESSAGES.items():
            if known.get(name) != (data := encode(message)):
                file.write(f"{name} {data.hex()}\n")


if __name__ == "__main__":
    append_new()
