"""Previews of a long journal: a sample of its records, so a viewer can draw curves at once."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from ..protocol.codec import UNDECODABLE
from .journal import FrameReader, valid_frames

SAMPLES = 300
_PEEK_BYTES = 8 * 1024
_HEAD_BYTES = 16 * 1024
_SCAN_BYTES = 256 * 1024
_PARTS = 400
"""Parts of the history with extremes of their own; a wide terminal draws 400 dots per curve."""
_RARE_EVENTS = 2_000
"""Number of records kept of the rarer events, the newest ones."""
_STEP_TAG = b"\xa1k\xacStepFinished"
_TAG_WITHIN = 48
_FREQUENT = frozenset({"StepFinished", "LogEmitted", "ProgressMade"})


class _CurveEvent(msgspec.Struct, frozen=True):
    """The fields of an event that the choice of records needs."""

    k: str
    loss: float | None = None
    grad_norm: float | None = None


class _ThinRecord(msgspec.Struct, frozen=True, array_like=True):
    seq: int
    time: float
    step: int
    timeline: int
    event: _CurveEvent


_decoder = msgspec.msgpack.Decoder(_ThinRecord)


def _thin(payload: bytes) -> _ThinRecord | None:
    try:
        return _decoder.decode(payload)
    except UNDECODABLE:
        return None


def sample_records(path: Path, after_offset: int) -> list[bytes]:
    """Return finished steps from 300 evenly spaced places after an offset, in order.

    The other events in the first 16 KiB after the offset are included. The time needed does not
    depend on the size of the journal.
    """
    with open(path, "rb") as file:
        descriptor = file.fileno()
        size = os.fstat(descriptor).st_size
        chosen = {}
        for payload in _at(descriptor, after_offset, _HEAD_BYTES):
            if (record := _thin(payload)) is not None and record.event.k != "StepFinished":
                chosen[record.seq] = payload
        for part in range(SAMPLES):
            at = after_offset + part * (size - after_offset) // SAMPLES
            step = _step_at(descriptor, at)
            if step is not None and (record := _thin(step)) is not None:
                chosen[record.seq] = step
    return [chosen[seq] for seq in sorted(chosen)]


def _step_at(descriptor: int, offset: int) -> bytes | None:
    """Return the first finished step after an offset; None if there is none within 8 KiB."""
    data = os.pread(descriptor, _PEEK_BYTES, offset)
    found = data.find(_STEP_TAG)
    while found >= 0:
        # The frame header and four numbers are between the start of a frame and its event's tag.
        for start in range(max(0, found - _TAG_WITHIN), found):
            for _, payload in valid_frames(data, start):
                return payload
        found = data.find(_STEP_TAG, found + 1)
    return None


def _at(descriptor: int, offset: int, length: int) -> Iterator[bytes]:
    """Yield payloads of whole frames in `length` bytes from an offset, which may be in a frame."""
    data = os.pread(descriptor, length, offset)
    for start in range(len(data)):
        frames = list(valid_frames(data, start))
        if frames:
            return (payload for _, payload in frames)
    return iter(())


class MinMaxSampler:
    """Chooses the records with the extremes of the curves, scanning the journal in small pieces.

    It keeps the records with the smallest and the largest loss, the largest gradient norm and the
    first non-finite loss of each of 400 parts of the history, the newest step, and the newest 2,000
    of the other events, without log lines and progress.
    """

    def __init__(self, path: Path, after_offset: int, after_seq: int, head_seq: int) -> None:
        self._reader = FrameReader(path, after_offset)
        self._after = after_seq
        self._span = max(1, head_seq - after_seq)
        self.head_seq = head_seq
        self._best: dict[tuple[int, str], tuple[float, int, bytes]] = {}
        self._rare_events: dict[int, bytes] = {}
        self._newest: dict[int, bytes] = {}
        """The newest finished step."""

    def advance(self) -> bool:
        """Scan the next 256 KiB, which takes some milliseconds.

        Return True at the end of the journal or its undamaged part, or after record `head_seq`.
        """
        frames = self._reader.read(_SCAN_BYTES)
        for _, payload in frames:
            record = _thin(payload)
            if record is not None and record.seq > self.head_seq:
                return True
            if record is not None:
                self._weigh(record, payload)
        return not frames

    def _weigh(self, record: _ThinRecord, payload: bytes) -> None:
        if record.event.k not in _FREQUENT:
            self._rare_events[record.seq] = payload
            if len(self._rare_events) > _RARE_EVENTS:
                self._rare_events.pop(next(iter(self._rare_events)))
        if record.event.k != "StepFinished" or record.event.loss is None:
            return
        self._newest = {record.seq: payload}
        part = (record.seq - self._after) * _PARTS // self._span
        loss, norm = record.event.loss, record.event.grad_norm
        if not math.isfinite(loss):
            self._best.setdefault((part, "odd"), (0.0, record.seq, payload))
            return
        self._keep((part, "low"), -loss, record.seq, payload)
        self._keep((part, "high"), loss, record.seq, payload)
        if norm is not None and math.isfinite(norm):
            self._keep((part, "norm"), norm, record.seq, payload)

    def _keep(self, place: tuple[int, str], height: float, seq: int, payload: bytes) -> None:
        best = self._best.get(place)
        if best is None or height > best[0]:
            self._best[place] = (height, seq, payload)

    def records(self) -> list[bytes]:
        """Return the chosen records in order."""
        best = {seq: payload for _, seq, payload in self._best.values()}
        chosen = best | self._rare_events | self._newest
        return [chosen[seq] for seq in sorted(chosen)]


def newest_seq(path: Path) -> int:
    """Return the sequence number of a finished step near the end of a journal; 0 without one."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        step = _step_at(file.fileno(), max(0, size - _PEEK_BYTES))
    record = None if step is None else _thin(step)
    return 0 if record is None else record.seq
