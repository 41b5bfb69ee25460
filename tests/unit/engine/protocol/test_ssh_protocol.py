"""The byte stream between a viewer and a bridge: frames, noise, packed records."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fttui.engine.protocol.codec import DecodeError, encode
from fttui.engine.protocol.record_blocks import pack_block, unpack_block
from fttui.engine.protocol.ssh_protocol import (
    MAGIC,
    MAX_FRAME_BYTES,
    MAX_NOISE_BYTES,
    FrameKind,
    FrameParser,
    JournalPosition,
    Open,
    decode_bridge_message,
    decode_bridge_request,
    frames_of,
)

messages = st.lists(st.tuples(st.sampled_from([0, 1, 2, 3]), st.binary(max_size=50)), max_size=8)


@given(
    messages,
    st.binary(max_size=40).filter(lambda noise: MAGIC not in noise),
    st.lists(st.integers(1, 60), min_size=1),
)
def test_messages_arrive_whole_however_the_stream_is_cut(
    sent: list[tuple[int, bytes]], noise: bytes, cuts: list[int]
) -> None:
    stream = noise + MAGIC + b"".join(frames_of(FrameKind(c), p) for c, p in sent)
    parser, at = FrameParser(expect_magic=True), 0
    got: list[tuple[int, bytes]] = []
    while at < len(stream):
        size = cuts[len(got) % len(cuts)]
        got += parser.feed(stream[at : at + size])
        at += size
    assert got == sent
    assert parser.noise == noise
    assert parser.received_bytes == len(stream) - len(noise) - len(MAGIC)


def test_a_payload_too_long_for_a_frame_arrives_whole() -> None:
    payload = bytes(range(256)) * (3 * MAX_FRAME_BYTES // 256) + b"end"
    assert FrameParser(expect_magic=False).feed(frames_of(FrameKind.HUB, payload)) == [
        (FrameKind.HUB, payload)
    ]


def test_something_else_than_a_bridge_is_given_up() -> None:
    parser = FrameParser(expect_magic=True)
    assert parser.feed(b"Last login: today\n") == []
    assert parser.noise == b"Last login: today\n"
    assert not parser.greeted
    with pytest.raises(DecodeError, match="no bridge"):
        parser.feed(b"x" * (MAX_NOISE_BYTES + 100))


def test_a_frame_longer_than_allowed_is_refused() -> None:
    with pytest.raises(DecodeError, match="at most"):
        FrameParser(expect_magic=False).feed(struct.pack("<IB", MAX_FRAME_BYTES + 1, 1))


@given(st.lists(st.binary(max_size=60)))
def test_packed_records_come_back_in_order(payloads: list[bytes]) -> None:
    assert unpack_block(pack_block(payloads)) == payloads


@given(st.lists(st.binary(max_size=9), min_size=1), st.data())
def test_a_damaged_block_is_refused(payloads: list[bytes], data: st.DataObject) -> None:
    block = pack_block(payloads)
    cut = data.draw(st.integers(0, len(block) - 1))
    with pytest.raises(DecodeError):
        unpack_block(block[:cut])


def test_columns_take_less_than_rows() -> None:
    import zlib

    rows = [b"loss" + struct.pack(">d", 1 / (n + 3)) + b"time" + struct.pack(">d", 1.7e9 + n)
            for n in range(2000)]  # fmt: skip
    assert len(pack_block(rows)) < 0.9 * len(zlib.compress(b"".join(rows), 1))


def test_talk_of_a_later_version_is_skipped_and_nonsense_refused() -> None:
    asked = Open(
        version=(1, 0), viewer="v", issuer="i", seen=JournalPosition(seq=1, crc=2, offset=3)
    )
    assert decode_bridge_request(encode(asked)) == asked
    assert decode_bridge_message(b"\x81\xa1k\xa5Later") is None
    for nonsense in (b"", b"\xff", b"\x81\xa1k\xa4Open", b"\x81\xa1k\xa3\xa6\xa6\xa6"):
        with pytest.raises(DecodeError):
            decode_bridge_request(nonsense)
