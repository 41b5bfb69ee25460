"""Reads the records of a run's journal in order, each once, while the journal still grows.

Everything that needs the whole journal of a run reads it here; the hub and sessions, which follow
its end, do not.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from ...protocol.codec import DecodeError, decode_record
from ...protocol.events import Record
from ..journal import DamagedPart, FrameReader, read_past_damage
from ..processes.marks import read_engine_status
from ..run_dir import RunDirectory


class RecordFeed:
    """The records of a run from the beginning of its journal on.

    A record whose sequence number is not above the last one is left out, so that a journal that was
    written again repeats nothing.
    """

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        self._reader = FrameReader(run.journal)
        self._last_seq = 0
        self.unknown = 0
        """Records of kinds that this version of fttui does not know."""
        self.unreadable = 0
        """Frames that are not records."""
        self.damaged_bytes = 0
        """Bytes of damaged parts that were passed over."""

    def read(self) -> list[Record]:
        """Return the next records, up to some thousands; an empty list if there are none now.

        Raises:
            OSError: the journal cannot be read, or is a link.
        """
        self._begin_again_if_shorter()
        return list(self._records(payload for _, payload in self._reader.read()))

    def read_rest(self) -> list[Record]:
        """Return the records behind a damaged part, once no engine works on the run any more.

        Raises:
            OSError: the journal cannot be read, or is a link.
        """
        try:
            parts = list(read_past_damage(self._run.journal, self._reader.offset))
        except FileNotFoundError:
            return []
        self.damaged_bytes = sum(part.size_bytes for part in parts if isinstance(part, DamagedPart))
        return list(self._records(part for part in parts if isinstance(part, bytes)))

    @property
    def not_read(self) -> list[str]:
        """What of the journal could not be read, in words."""
        counted = {
            "records of kinds that this version of fttui does not know": self.unknown,
            "frames of the journal that are not records": self.unreadable,
            "damaged bytes of the journal": self.damaged_bytes,
        }
        return [f"{number:,} {what}" for what, number in counted.items() if number]

    def _begin_again_if_shorter(self) -> None:
        try:
            size = os.stat(self._run.journal, follow_symlinks=False).st_size
        except FileNotFoundError:
            return
        if size < self._reader.offset:
            self._reader = FrameReader(self._run.journal)

    def _records(self, payloads: Iterable[bytes]) -> Iterator[Record]:
        for payload in payloads:
            try:
                record = decode_record(payload)
            except DecodeError:
                self.unreadable += 1
                continue
            if record is None:
                self.unknown += 1
            elif record.seq > self._last_seq:
                self._last_seq = record.seq
                yield record


def engine_works(run: RunDirectory) -> bool:
    """Whether an engine works on a run; assumed if it was started on another machine."""
    return read_engine_status(run).alive


def read_whole(run: RunDirectory) -> tuple[list[Record], list[str]]:
    """Return the records of a run so far, and what of its journal could not be read, in words.

    What follows a damaged part is read only once no engine works on the run, because the last
    record may otherwise be one that is being written.

    Raises:
        OSError: the journal cannot be read, or is a link.
    """
    works = engine_works(run)
    feed = RecordFeed(run)
    records: list[Record] = []
    while found := feed.read():
        records += found
    if not works:
        records += feed.read_rest()
    return records, feed.not_read
