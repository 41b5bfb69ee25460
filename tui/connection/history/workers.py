"""Lets several processes decode a very long journal, and puts their parts in order."""

from __future__ import annotations

import asyncio
import os
import pickle
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from pathlib import Path

from fttui.engine.run.journal_preview import newest_seq

from .parts import HistoryPart, block_width
from .worker import LENGTH_BYTES

WORTH_BYTES = 256 * 1024 * 1024
"""Shorter parts of a journal are decoded before processes would have started."""
PART_BYTES = 32 * 1024 * 1024
_BUFFER_BYTES = 4 * 1024 * 1024
_MOST = 4


async def read_by_workers(
    journal: Path, end: int, points: int
) -> AsyncGenerator[HistoryPart, None]:
    """Yield the parts of a long journal in order, up to an offset, decoded by other processes.

    It ends early where they find no whole frame, or cannot be started; the caller reads on from the
    last part. A journal shorter than `WORTH_BYTES` is left to the caller.

    Args:
        journal: the file.
        end: offset to read up to.
        points: values that remain of each curve, approximately.
    """
    processors = os.cpu_count() or 1
    if end < WORTH_BYTES or processors < 2:
        return
    width = block_width(await asyncio.to_thread(newest_seq, journal), points)
    workers: list[asyncio.subprocess.Process] = []
    try:
        for number in range(count := min(processors, _MOST)):
            workers.append(await _started(journal, end, PART_BYTES, width, number, count))
        async for part in _in_order(workers, end):
            yield part
    except (OSError, asyncio.IncompleteReadError, pickle.UnpicklingError):
        return  # a worker has ended; the caller reads on
    finally:
        for worker in workers:
            with suppress(ProcessLookupError):
                worker.kill()
        for worker in workers:
            await worker.wait()


async def _started(journal: Path, *numbers: int) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "fttui.tui.connection.history.worker", str(journal)),
        *map(str, numbers),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        limit=_BUFFER_BYTES,
    )


async def _in_order(
    workers: Sequence[asyncio.subprocess.Process], end: int
) -> AsyncGenerator[HistoryPart, None]:
    """Yield the parts of all workers, each of which begins where the one before ended."""
    offset, number = 0, 0
    while offset < end:
        reader = workers[number % len(workers)].stdout
        assert reader is not None
        number, before = number + 1, offset
        while length := int.from_bytes(await reader.readexactly(LENGTH_BYTES), "little"):
            part: HistoryPart = pickle.loads(await reader.readexactly(length))
            if part.begin != offset:
                return
            offset = part.offset
            yield part
        if offset == before:
            return
