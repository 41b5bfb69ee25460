"""Frames that are checked together are found whole exactly where checks one by one find them so."""

from __future__ import annotations

import random
import zlib

import numpy as np
import pytest

from fttui.engine.run.journal import frame, frames_in
from fttui.tui.connection.history.frame_checksums import checksums_of, leading_whole

LENGTH, HEAD = 37, 8


def payloads(count: int, length: int = LENGTH, seed: int = 0) -> list[bytes]:
    draw = random.Random(seed)
    return [draw.randbytes(length) for _ in range(count)]


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 100, 255])
def test_the_checksum_of_all_follows_from_those_of_the_frames(count: int) -> None:
    given = payloads(count)
    held = np.array([zlib.crc32(one) for one in given], dtype=np.uint32)
    assert checksums_of(LENGTH).together(held) == zlib.crc32(b"".join(map(frame, given)))


def test_frames_of_another_length_end_them() -> None:
    data = b"".join(map(frame, [*payloads(70), *payloads(3, 5), *payloads(70)]))
    size = LENGTH + HEAD
    assert leading_whole(memoryview(data), 0, LENGTH, len(data) // size) == 70
    assert leading_whole(memoryview(data), size, LENGTH, 20) == 20


def test_every_damaged_bit_is_noticed_in_its_frame() -> None:
    given = [*payloads(90), *payloads(70, 50), *payloads(2)]
    whole, draw = b"".join(map(frame, given)), random.Random(1)
    assert list(frames_in(whole, len(whole), leading_whole)) == given
    for _ in range(200):
        data = bytearray(whole)
        at = draw.randrange(len(data))
        data[at] ^= 1 << draw.randrange(8)
        found = list(frames_in(bytes(data), len(data), leading_whole))
        assert found == list(frames_in(bytes(data), len(data)))
        assert found == given[: len(found)]
        assert sum(HEAD + len(one) for one in found) <= at


def test_two_damaged_frames_do_not_hide_each_other() -> None:
    data = bytearray(b"".join(map(frame, payloads(80))))
    for number in (10, 11):
        data[number * (LENGTH + HEAD) + HEAD + 3] ^= 1
    assert list(frames_in(bytes(data), len(data), leading_whole)) == payloads(10 + 70)[:10]
