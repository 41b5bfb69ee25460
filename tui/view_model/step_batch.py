"""Decode many journal records at once: finished steps as columns of numbers, all else as records.

Neighbouring steps are encoded with the same keys and widths and differ only in their numbers.
Therefore one of them is parsed into a template, and the numbers of all others are read at the same
places in one operation. A record that differs from every template outside its numbers gets its own.
This is ten times as fast as decoding one by one, so that a viewer can open a long run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise

import msgspec
import numpy as np
from numpy.typing import NDArray

from fttui.engine.protocol.codec import DecodeError, decode_readable
from fttui.engine.protocol.events import Record, StepFinished
from fttui.engine.protocol.record_blocks import Frames

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
_STEP_TAG = b"\xa1k\xac" + StepFinished.__name__.encode()
_TAG_WITHIN = 64
_CODE_TYPES = {
    0xCA: ">f4", 0xCB: ">f8", 0xCC: ">u1", 0xCD: ">u2", 0xCE: ">u4", 0xCF: ">u8",
    0xD0: ">i1", 0xD1: ">i2", 0xD2: ">i4", 0xD3: ">i8",
}  # fmt: skip
_FALSE, _TRUE, _NIL = 0xC2, 0xC3, 0xC0
_HEAD = ("seq", "time", "step", "timeline")
_WHOLE = frozenset(_HEAD) - {"time"}


@dataclass(frozen=True, eq=False)
class Steps:
    """Consecutive finished steps of one timeline, as columns `[N]`."""

    seq: Integers
    time: Floats
    step: Integers
    timeline: int
    columns: Mapping[str, Floats]
    """Field name, or `field.key` for entries of dicts and lists → one value per step."""
    present: Mapping[str, NDArray[np.bool_]]
    """Masks of the steps that have a value, for columns that some steps lack."""
    last: Record
    """The record of the newest step."""
    sparse: Mapping[str, tuple[Integers, Floats]] = field(default_factory=dict)
    """Further columns that few steps have: their places among the steps, and their values."""

    def __len__(self) -> int:
        return len(self.seq)

    def after(self, seq: int) -> Steps | None:
        """Return the steps after a sequence number; None if there are none."""
        first = int(self.seq.searchsorted(seq, side="right"))
        if first == 0:
            return self
        if first == len(self):
            return None
        return replace(
            self,
            seq=self.seq[first:],
            time=self.time[first:],
            step=self.step[first:],
            columns={name: column[first:] for name, column in self.columns.items()},
            present={name: mask[first:] for name, mask in self.present.items()},
            sparse={name: _from(first, *found) for name, found in self.sparse.items()},
        )

    def with_sparse(self, whole: Callable[[str], bool]) -> Steps:
        """Return the steps with only some columns `whole`, and the present values of the others."""
        columns = {name: column for name, column in self.columns.items() if whole(name)}
        sparse = dict(self.sparse)
        for name, column in self.columns.items():
            if name not in columns:
                mask = self.present.get(name)
                at = np.arange(len(self)) if mask is None else np.flatnonzero(mask)
                sparse[name] = at, column[at]
        present = {name: mask for name, mask in self.present.items() if name in columns}
        return replace(self, columns=columns, present=present, sparse=sparse)

    def thinned(self, width: int, *, whole_end: bool = True) -> Steps:
        """Return the steps without most of their values.

        Each column keeps the extremes of each block of `width` steps, and the first non-finite
        value of the block, or its first value if all are finite. A width from 1 to 3 changes
        nothing. The columns keep their length; `present` is false for the values that were dropped.

        Args:
            width: steps of a block.
            whole_end: whether an incomplete block at the end is kept whole.
        """
        inside = len(self) // width * width if whole_end else len(self)
        if width < 4 or not inside:
            return self
        values = np.stack([column[:inside] for column in self.columns.values()])
        masks = np.ones((len(values), len(self)), dtype=bool)
        for start, stop, size in _blocks(inside, width):
            masks[:, start:stop] = _extremes(values[:, start:stop], size)
        known = zip(self.columns, masks, strict=True)
        return replace(
            self, present={name: mask & self.present.get(name, True) for name, mask in known}
        )


def _blocks(length: int, width: int) -> Iterator[tuple[int, int, int]]:
    """Yield (start, stop, size of blocks) of the parts of a range: whole blocks, and the rest."""
    whole = length // width * width
    if whole:
        yield 0, whole, width
    if whole < length:
        yield whole, length, length - whole


def _extremes(values: Floats, size: int) -> NDArray[np.bool_]:
    """Return a mask of the values to keep of each block of `size` in each row `[M, N]`."""
    blocks = values.reshape(len(values), -1, size)
    odd = ~np.isfinite(blocks)
    kept = np.zeros(blocks.shape, dtype=bool)
    low = high = blocks
    if odd.any():
        low, high = np.where(odd, np.inf, blocks), np.where(odd, -np.inf, blocks)
    for pick in (low.argmin(axis=2), high.argmax(axis=2), odd.argmax(axis=2)):
        np.put_along_axis(kept, pick[:, :, None], True, axis=2)
    return kept.reshape(values.shape)


def _from(first: int, places: Integers, values: Floats) -> tuple[Integers, Floats]:
    """Return the places and values of a sparse column without the `first` steps."""
    cut = int(places.searchsorted(first))
    return places[cut:] - first, values[cut:]


@dataclass(frozen=True, eq=False)
class RecordBatch:
    """Decoded payloads in order, and the number of records that this version cannot read."""

    parts: Sequence[Record | Steps]
    unknown: int = 0


def decode_batch(payloads: Sequence[bytes]) -> RecordBatch:
    """Decode journal payloads: consecutive finished steps to one array per field, others singly."""
    table = _Table(payloads)
    table.fill()
    parts: list[Record | Steps] = []
    unknown, done = 0, 0
    for steps, start, stop in table.runs():
        single = payloads[done : start if steps is not None else stop]
        others = [decode_readable(payload) for payload in single]
        parts += [record for record in others if record is not None]
        unknown += others.count(None)
        parts += [] if steps is None else [steps]
        done = stop
    return RecordBatch(parts, unknown)


def steps_of(records: Sequence[Record]) -> Iterator[Steps]:
    """Yield records of finished steps as columns, a part for each neighbouring group of a timeline.

    For many records `decode_batch` is faster.
    """
    for timeline, group in groupby(records, key=lambda record: record.timeline):
        yield _few(timeline, list(group))


def _few(timeline: int, records: Sequence[Record]) -> Steps:
    rows = [dict(_numbers(record.event)) for record in records]
    names = {name: None for row in rows for name in row}
    present = {name: np.array([name in row for row in rows]) for name in names}
    return Steps(
        seq=np.array([record.seq for record in records]),
        time=np.array([record.time for record in records]),
        step=np.array([record.step for record in records]),
        timeline=timeline,
        columns={n: np.array([row.get(n, np.nan) for row in rows], dtype=float) for n in names},
        present={name: mask for name, mask in present.items() if not mask.all()},
        last=records[-1],
    )


def _numbers(event: msgspec.Struct) -> Iterator[tuple[str, float]]:
    for name in event.__struct_fields__:
        match getattr(event, name):
            case int() | float() as value:
                yield name, value
            case dict() as values:
                yield from ((f"{name}.{key}", value) for key, value in values.items())
            case msgspec.Struct() as part:
                yield from ((f"{name}.{key}", value) for key, value in _numbers(part))
            case list() as values:
                yield from ((f"{name}.{index}", value) for index, value in enumerate(values))


def _is_step(payload: bytes) -> bool:
    return payload.find(_STEP_TAG, 0, _TAG_WITHIN) >= 0


@dataclass(frozen=True)
class _Number:
    """The place and the type of a number within an encoded record."""

    name: str
    at: int
    type: str


class _Template:
    """The layout of an encoded step: which bytes are numbers and which are fixed."""

    def __init__(self, payload: bytes) -> None:
        self.numbers: list[_Number] = []
        self._fixed = np.ones(len(payload), dtype=bool)
        self._small: list[int] = []
        """Places of numbers that are encoded as a single byte."""
        self._booleans: list[int] = []
        self._payload = payload
        self._walk(0, "")
        self._mask = np.where(self._fixed, 0xFF, 0).astype(np.uint8)
        self._sample = np.frombuffer(payload, dtype=np.uint8)

    def _walk(self, at: int, name: str) -> int:
        """Note the numbers in the encoded value at byte `at`, and return the offset after it."""
        code = self._payload[at]
        if code in _CODE_TYPES:
            return self._number(name, at + 1, _CODE_TYPES[code])
        if code < 0x80 or code in (_FALSE, _TRUE):
            (self._small if code < 0x80 else self._booleans).append(at)
            return self._number(name, at, ">u1")
        if code == _NIL:
            return at + 1
        return self._walk_inside(code, at, name)

    def _number(self, name: str, at: int, type_: str) -> int:
        end = at + np.dtype(type_).itemsize
        self.numbers.append(_Number(name, at, type_))
        self._fixed[at:end] = False
        return end

    def _walk_inside(self, code: int, at: int, name: str) -> int:
        if code in (0xDC, 0xDE):
            size, at = int.from_bytes(self._payload[at + 1 : at + 3], "big"), at + 3
        elif code & 0xF0 in (0x80, 0x90):
            size, at = code & 0x0F, at + 1
        else:
            return self._string(at)[1]
        keyed = code == 0xDE or code & 0xF0 == 0x80
        for index in range(size):
            key = str(index)
            if keyed:
                key, at = self._string(at)
            elif not name and index < len(_HEAD):
                key = _HEAD[index]
            inside = name and index >= 0 and name != "4"
            at = self._walk(at, f"{name}.{key}" if inside else key)
        return at

    def _string(self, at: int) -> tuple[str, int]:
        code = self._payload[at]
        if code & 0xE0 == 0xA0:
            size, at = code & 0x1F, at + 1
        elif code == 0xD9:
            size, at = self._payload[at + 1], at + 2
        else:
            raise DecodeError(f"no step record: byte {code:#x} at {at}")
        return self._payload[at : at + size].decode(), at + size

    def fits(self, rows: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """Return a mask of the records that differ from this layout in numbers only."""
        if self._fit_all(rows):
            return np.ones(len(rows), dtype=bool)
        differs = rows ^ self._sample
        differs &= self._mask
        same = np.ones(len(rows), dtype=bool)
        if differs.any():
            same &= ~differs.any(axis=1)
        if self._small:
            same &= (rows[:, self._small] < 0x80).all(axis=1)
        if self._booleans:
            same &= (rows[:, self._booleans] & 0xFE == _FALSE).all(axis=1)
        return same

    def _fit_all(self, rows: NDArray[np.uint8]) -> bool:
        """Whether all records differ from this layout in numbers only, as most neighbours do.

        The bits that any of them has, and those that all of them have, are found three times as
        fast as those in which each differs.
        """
        some, every = np.bitwise_or.reduce(rows, axis=0), np.bitwise_and.reduce(rows, axis=0)
        differ = ((some ^ self._sample) | (every ^ self._sample)) & self._mask
        flags = np.concatenate([some[self._booleans], every[self._booleans]])
        small = some[self._small]
        return not differ.any() and bool((small < 0x80).all() and (flags & 0xFE == _FALSE).all())

    def read(self, rows: NDArray[np.uint8]) -> dict[str, Floats | Integers]:
        """Return the numbers of records that fit this layout: name → one value per record."""
        fields = np.dtype(
            {
                "names": [number.name for number in self.numbers],
                "formats": [number.type for number in self.numbers],
                "offsets": [number.at for number in self.numbers],
                "itemsize": rows.shape[1],
            }
        )
        table = rows.view(fields)[:, 0]
        found: dict[str, Floats | Integers] = {}
        for number in self.numbers:
            if number.name in _WHOLE:
                found[number.name] = table[number.name].astype(np.int64)
            else:
                column = table[number.name].astype(np.float64)
                found[number.name] = column - _FALSE if number.at in self._booleans else column
        return found


def _template(payload: bytes) -> _Template | None:
    """Return the layout of a finished step; None for any other record or an unknown encoding."""
    if not _is_step(payload):
        return None
    try:
        template = _Template(payload)
    except (DecodeError, IndexError, UnicodeDecodeError):
        return None
    names = {number.name for number in template.numbers}
    return template if names.issuperset(_HEAD) else None


def _lengths(payloads: Sequence[bytes]) -> Integers:
    """Return the lengths of payloads, in bytes."""
    if isinstance(payloads, Frames):
        return np.array(payloads.ends, np.int64) - np.array(payloads.starts, np.int64)
    return np.fromiter(map(len, payloads), np.int64, len(payloads))


def _rows(payloads: Sequence[bytes], places: Integers, length: int) -> NDArray[np.uint8]:
    """Return payloads of one length as an array `[N, length]`, without a copy where they allow it.

    They do in one buffer in which they follow each other at the same distance.
    """
    if isinstance(payloads, Frames) and len(places) > 1:
        starts = np.array(payloads.starts, np.int64)[places]
        gaps = np.diff(starts)
        if (gaps == gaps[0]).all():
            data = np.frombuffer(payloads.data, np.uint8, offset=int(starts[0]))
            shape, strides = (len(places), length), (int(gaps[0]), 1)
            return np.lib.stride_tricks.as_strided(data, shape, strides, writeable=False)
    joined = b"".join([payloads[place] for place in places.tolist()])
    return np.frombuffer(joined, dtype=np.uint8).reshape(len(places), length)


class _Table:
    """Columns that are filled from records of several layouts."""

    def __init__(self, payloads: Sequence[bytes]) -> None:
        self._payloads = payloads
        size = len(payloads)
        self._head = {name: np.zeros(size, dtype=np.int64) for name in _WHOLE}
        self._columns: dict[str, Floats] = {"time": np.zeros(size)}
        self._present: dict[str, NDArray[np.bool_]] = {}
        self._known = np.zeros(size, dtype=bool)

    def fill(self) -> None:
        """Read the numbers of all finished steps."""
        lengths = _lengths(self._payloads)
        for length in np.unique(lengths):
            places = np.flatnonzero(lengths == length)
            self._fill_alike(_rows(self._payloads, places, int(length)), places)

    def _fill_alike(self, rows: NDArray[np.uint8], places: Integers) -> None:
        """Read the numbers of records of one length, template by template."""
        while len(places):
            template = _template(self._payloads[places[0]])
            if template is None:
                rows, places = rows[1:], places[1:]
                continue
            fitting = template.fits(rows)
            if fitting.all():
                self._put(places, template.read(rows))
                return
            self._put(places[fitting], template.read(rows[fitting]))
            rows, places = rows[~fitting], places[~fitting]

    def _put(self, places: Integers | slice, values: dict[str, Floats | Integers]) -> None:
        size = len(self._payloads)
        if isinstance(places, np.ndarray) and len(places) and places[-1] - places[0] < len(places):
            places = slice(int(places[0]), int(places[-1]) + 1)
        for name, column in values.items():
            if name in self._head:
                self._head[name][places] = column
                continue
            if name not in self._columns:
                self._columns[name] = np.full(size, np.nan)
            if name not in self._present:
                self._present[name] = np.zeros(size, dtype=bool)
            self._columns[name][places] = column
            self._present[name][places] = True
        self._known[places] = True

    def runs(self) -> Iterator[tuple[Steps | None, int, int]]:
        """Yield consecutive steps with the range [start, stop) of their payloads.

        The steps are None if the newest of them cannot be decoded, and in a last item that only
        marks the end.
        """
        known, timelines = self._known, self._head["timeline"]
        cuts = np.flatnonzero(np.diff(known) | (np.diff(timelines) != 0)) + 1
        bounds = [0, *cuts.tolist(), len(known)]
        for start, stop in pairwise(bounds):
            if stop > start and known[start]:
                yield self._part(start, stop), start, stop
        yield None, len(known), len(known)

    def _part(self, start: int, stop: int) -> Steps | None:
        last = decode_readable(self._payloads[stop - 1])
        if last is None:
            return None
        rows = slice(start, stop)
        present = {name: mask[rows] for name, mask in self._present.items() if name != "time"}
        return Steps(
            seq=self._head["seq"][rows],
            time=self._columns["time"][rows],
            step=self._head["step"][rows],
            timeline=last.timeline,
            columns={n: self._columns[n][rows] for n, mask in present.items() if mask.any()},
            present={n: mask for n, mask in present.items() if mask.any() and not mask.all()},
            last=last,
        )
