"""Parts of a long journal: decoded, and with old steps thinned out."""

from __future__ import annotations

import math
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fttui.engine.protocol.codec import DecodeError, peek_seq
from fttui.engine.protocol.events import Record
from fttui.engine.protocol.record_blocks import Frames
from fttui.engine.run.damage import HEAD
from fttui.engine.run.journal import FrameReader

from ...view_model.branches import needed_whole
from ...view_model.step_batch import RecordBatch, decode_batch
from .frame_checksums import leading_whole

_READ_BYTES = 8 * 1024 * 1024
_SEARCH_BYTES = 256 * 1024
"""Bytes after an offset in which the first whole frame is searched."""


@dataclass(frozen=True)
class HistoryPart:
    """Decoded records of a journal, and where they are in it."""

    batch: RecordBatch
    begin: int
    """Offset of the first frame."""
    offset: int
    """Offset after the last frame."""
    seq: int
    """Sequence number of the newest record; 0 if none can be read."""
    crc: int
    """crc32 of the newest record."""


def block_width(records: int, points: int) -> int:
    """Return the steps of a block, so that about `points` of a history of `records` remain."""
    width: int = 2 ** max(0, math.ceil(math.log2(max(1, records) / points)) + 1)
    return width


def thinned(batch: RecordBatch, width: int, *, whole_end: bool = True) -> RecordBatch:
    """Thin out the steps of a batch in blocks of `width`."""
    parts = [
        part if isinstance(part, Record) else part.thinned(width, whole_end=whole_end)
        for part in batch.parts
    ]
    return RecordBatch(parts, batch.unknown)


def newest_of(frames: Frames) -> tuple[int, int]:
    """Return sequence number and crc32 of the newest record; (0, crc of nothing) without one."""
    for index in range(len(frames) - 1, -1, -1):
        if seq := _seq(frames[index]):
            return seq, zlib.crc32(frames[index])
    return 0, zlib.crc32(b"")


def _seq(payload: bytes) -> int:
    try:
        return peek_seq(payload)
    except DecodeError:
        return 0


def read_part(journal: Path, begin: int, end: int, width: int) -> Iterator[HistoryPart]:
    """Yield the records whose frames begin in [begin, end), thinned out in blocks of `width`.

    It ends early at a damaged part, and yields nothing where no frame begins soon after `begin`.
    """
    reader = FrameReader(journal, first_frame(journal, begin))
    start = reader.offset
    while reader.offset < end and (frames := reader.read_frames(_READ_BYTES, end, leading_whole)):
        seq, crc = newest_of(frames)
        batch = thinned(decode_batch(frames), width, whole_end=False)
        sparse = [p if isinstance(p, Record) else p.with_sparse(needed_whole) for p in batch.parts]
        yield HistoryPart(RecordBatch(sparse, batch.unknown), start, reader.offset, seq, crc)
        start = reader.offset


def first_frame(journal: Path, begin: int) -> int:
    """Return the offset of the first frame at or after `begin`; `begin` if none is found soon."""
    if begin == 0:
        return 0
    with open(journal, "rb") as file:
        data = os.pread(file.fileno(), _SEARCH_BYTES, begin)
    view = memoryview(data)
    for at in range(len(data) - HEAD.size):
        length, crc = HEAD.unpack_from(data, at)
        start = at + HEAD.size
        if 0 < length <= len(data) - start and zlib.crc32(view[start : start + length]) == crc:
            return begin + at
    return begin
