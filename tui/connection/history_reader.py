"""Reads a long local journal from its file: a preview, then all of it with old steps thinned."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

from fttui.engine.protocol.codec import decode_readable
from fttui.engine.run.journal import FrameReader
from fttui.engine.run.journal_preview import sample_records
from fttui.engine.run.run_dir import RunDirectory

from ..view_model.connection_port import Deliver, HistoryArrived, HistoryProgressed, PreviewArrived
from ..view_model.step_batch import RecordBatch, decode_batch
from .history.frame_checksums import leading_whole
from .history.parts import block_width, newest_of, thinned
from .history.workers import read_by_workers

LONG_BYTES = 4 * 1024 * 1024
"""Journals shorter than this are left to the hub, which delivers them fast enough."""
_READ_BYTES = 4 * 1024 * 1024
POINTS = 1 << 15
"""Number of points, approximately, that are kept of each curve before the newest part."""
_EXACT_BYTES = 8 * 1024 * 1024
"""Length of the newest part of the journal, of which every step is kept."""


@dataclass(frozen=True)
class ReadPosition:
    """The position up to which a journal has been read."""

    seq: int = 0
    offset: int = 0
    crc: int | None = None
    """crc32 of the newest record read; None before the first one."""


async def read_history(run: RunDirectory, deliver: Deliver) -> ReadPosition:
    """Deliver a preview and then the records of a long journal; return the position reached.

    Of a missing journal, or one shorter than `LONG_BYTES`, nothing is delivered, and the position
    is its beginning.
    """
    try:
        size_bytes = run.journal.stat().st_size
    except FileNotFoundError:
        return ReadPosition()
    if size_bytes < LONG_BYTES:
        return ReadPosition()
    deliver(await asyncio.to_thread(_preview, run.journal))
    read = ReadPosition()
    async with aclosing(read_by_workers(run.journal, size_bytes - _EXACT_BYTES, POINTS)) as ready:
        async for part in ready:
            read = ReadPosition(part.seq, part.offset, part.crc)
            _deliver(part.batch, read, size_bytes, deliver)
    parts = batches(run.journal, size_bytes, read.offset)
    while (found := await asyncio.to_thread(next, parts, None)) is not None:
        batch, read = found
        _deliver(batch, read, size_bytes, deliver)
    return read


def _deliver(batch: RecordBatch, read: ReadPosition, size_bytes: int, deliver: Deliver) -> None:
    head_seq = max(read.seq, read.seq * size_bytes // read.offset)
    deliver(HistoryArrived(batch))
    deliver(HistoryProgressed(seq=read.seq, head_seq=head_seq))


def _preview(journal: Path) -> PreviewArrived:
    decoded = (decode_readable(payload) for payload in sample_records(journal, 0))
    records = [record for record in decoded if record is not None]
    return PreviewArrived(records=records, head_seq=records[-1].seq if records else 0)


def batches(
    journal: Path, size_bytes: int, offset: int = 0
) -> Iterator[tuple[RecordBatch, ReadPosition]]:
    """Yield decoded parts of a journal from an offset up to about `size_bytes`.

    Each comes with the position after it. The steps of all parts but the newest ones are thinned
    out.
    """
    reader = FrameReader(journal, offset)
    while reader.offset < size_bytes and (
        frames := reader.read_frames(_READ_BYTES, size_bytes + _READ_BYTES, leading_whole)
    ):
        seq, crc = newest_of(frames)
        batch = decode_batch(frames)
        if size_bytes - reader.offset > _EXACT_BYTES:
            batch = thinned(batch, block_width(seq * size_bytes // reader.offset, POINTS))
        yield batch, ReadPosition(seq, reader.offset, crc)
