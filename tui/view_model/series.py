"""Append-only curves that can be drawn at any zoom without hiding a spike, and their averages.

A `Series` is a value: appending returns a new one. All versions share buffers that only grow at the
end, so an older version still sees exactly its own points and an update copies nothing. Beyond
`CAPACITY` points the older ones are merged into their extremes, which bounds the memory of a run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

CAPACITY = 1 << 15
"""Maximum number of points per series; they take 512 KiB."""
_NEWEST = 8
"""The newest `CAPACITY / 8` points are never merged."""

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]
Point = tuple[float, float]


@dataclass(frozen=True)
class Trace:
    """The points of a series to draw: connected stretches, and x of the non-finite values."""

    runs: tuple[tuple[Point, ...], ...] = ()
    gaps: tuple[float, ...] = ()


class _Store:
    """The shared buffers of a series; the first `length` points are in use."""

    __slots__ = ("_buffer", "length")

    def __init__(self, capacity: int = 64) -> None:
        self._buffer: Floats = np.empty((2, capacity))
        self.length = 0

    @property
    def xs(self) -> Floats:
        row: Floats = self._buffer[0]
        return row

    @property
    def ys(self) -> Floats:
        row: Floats = self._buffer[1]
        return row

    def extend(self, xs: ArrayLike, ys: ArrayLike, amount: int) -> None:
        end = self.length + amount
        if end > self._buffer.shape[1]:
            grown = np.empty((2, max(end, 2 * self.length)))
            grown[:, : self.length] = self._buffer[:, : self.length]
            self._buffer = grown
        self._buffer[0, self.length : end] = xs
        self._buffer[1, self.length : end] = ys
        self.length = end

    def first(self, length: int) -> _Store:
        """Return a copy of the first `length` points, for an older version that is extended too."""
        other = _Store(length + 1)
        other.extend(self.xs[:length], self.ys[:length], length)
        return other

    def merged(self) -> _Store:
        """Return a store in which older points are thinned out; the newest eighth is kept.

        Of every part of the older x range, the smallest, the largest and the first non-finite value
        remain. All parts have the same width, so that old history keeps the same resolution.
        """
        old = self.length - CAPACITY // _NEWEST
        xs, ys = self.xs[:old], self.ys[:old]
        parts = _parts(xs, CAPACITY // 8)
        starts = np.concatenate([[0], np.flatnonzero(np.diff(parts)) + 1])
        finite = np.isfinite(ys)
        whole = bool(finite.all())
        kept = np.zeros(old, dtype=bool)
        for reduce, worst in ((np.minimum, np.inf), (np.maximum, -np.inf)):
            known = ys if whole else np.where(finite, ys, worst)
            kept[_firsts(parts, ys == _per_part(reduce, known, starts))] = True
        if not whole:
            kept[_firsts(parts, ~finite)] = True
        keep = np.concatenate([np.flatnonzero(kept), np.arange(old, self.length)])
        other = _Store(CAPACITY + CAPACITY // 4)
        other.extend(self.xs[keep], self.ys[keep], len(keep))
        return other


def _parts(xs: Floats, amount: int) -> Indices:
    """Return, for each ascending x, the number of the part of the x axis that it falls into.

    All parts have the same width, a power of two, so that there are about `amount` at most.
    """
    width = 2.0 ** np.ceil(np.log2(max(xs[-1] - xs[0], 1.0) / amount))
    found: Indices = np.floor(xs / width).astype(np.int64)
    return found


def _per_part(reduce: np.ufunc, ys: Floats, starts: Indices) -> Floats:
    """Return, for every value, the extreme of the part it falls into.

    `reduce` is `np.minimum` or `np.maximum`, `starts` are the indices at which the parts begin.
    """
    extremes: Floats = np.repeat(
        reduce.reduceat(ys, starts), np.diff(np.concatenate([starts, [len(ys)]]))
    )
    return extremes


def _firsts(parts: Indices, wanted: NDArray[np.bool_]) -> Indices:
    """Return the index of the first wanted value of every part that has one."""
    places = np.flatnonzero(wanted)
    new = np.diff(parts[places], prepend=parts[0] - 1) != 0
    found: Indices = places[new]
    return found


@dataclass(frozen=True, eq=False)
class Series:
    """A curve; x never decreases, y may be NaN or infinite."""

    _store: _Store = field(default_factory=_Store)
    _length: int = 0

    def __len__(self) -> int:
        return self._length

    @property
    def xs(self) -> Floats:
        """All x, oldest first, `[N]`."""
        return self._store.xs[: self._length]

    @property
    def ys(self) -> Floats:
        """All y, oldest first, `[N]`."""
        return self._store.ys[: self._length]

    def extend(self, xs: ArrayLike, ys: ArrayLike) -> Series:
        """Return the series with more points at its end."""
        amount = len(xs)  # type: ignore[arg-type]  # ArrayLike includes scalars, callers pass none
        if not amount:
            return self
        store = self._store
        if self._length != store.length:
            store = store.first(self._length)
        store.extend(xs, ys, amount)
        while store.length > CAPACITY:
            store = store.merged()
        return Series(store, store.length)

    def append(self, x: float, y: float) -> Series:
        """Return the series with one more point."""
        return self.extend((x,), (y,))

    @property
    def last(self) -> Point | None:
        """The newest point; None if the series is empty."""
        return (float(self.xs[-1]), float(self.ys[-1])) if self else None

    @property
    def first_x(self) -> float | None:
        """The oldest x; None if the series is empty."""
        return float(self.xs[0]) if self else None

    def at(self, x: float) -> float | None:
        """Return the value at x or at the nearest earlier point; None if there is none."""
        index = int(self.xs.searchsorted(x, side="right")) - 1
        return float(self.ys[index]) if index >= 0 else None

    def point_at(self, x: float) -> Point | None:
        """Return the point at x, or the nearest earlier one; None if there is none."""
        index = int(self.xs.searchsorted(x, side="right")) - 1
        return (float(self.xs[index]), float(self.ys[index])) if index >= 0 else None

    def tail(self, amount: int) -> list[float]:
        """Return the newest `amount` values of the curve, or all if it has fewer, oldest first."""
        return [float(y) for y in self.ys[max(0, self._length - amount) :]]

    def head(self, amount: int) -> list[float]:
        """Return the oldest `amount` values of the curve, or all if it has fewer, oldest first."""
        return [float(y) for y in self.ys[:amount]]

    def trace(self, x0: float, x1: float, columns: int) -> Trace:
        """Return the extremes of each column of [x0, x1], at their true x.

        If the range has at most two points per column on average, all of them are returned.

        Raises:
            ValueError: columns < 1.
        """
        if columns < 1:
            raise ValueError(f"columns must be ≥ 1, got {columns}")
        return self.trace_between(np.linspace(x0, x1, columns + 1))

    def trace_between(self, edges: Floats) -> Trace:
        """Return the smallest and the largest value between each pair of neighbouring edges.

        If there are at most two points per pair on average, all of them are returned. Non-finite
        values are left out of the points; the x of at most one per pair are in `gaps`.

        Args:
            edges: two or more x, increasing.
        """
        xs, ys = self.xs, self.ys
        cuts = xs.searchsorted(edges)
        cuts[-1] = xs.searchsorted(edges[-1], side="right")
        start, stop = int(cuts[0]), int(cuts[-1])
        finite = np.isfinite(ys[start:stop])
        bad = start + np.flatnonzero(~finite)
        picks = self._picks(cuts, None if not len(bad) else finite)
        runs = _split(picks, bad, xs, ys)
        return Trace(runs, tuple(float(x) for x in xs[_spread(bad, len(edges) - 1)]))

    def _picks(self, cuts: Indices, finite: NDArray[np.bool_] | None) -> Indices:
        start, stop = int(cuts[0]), int(cuts[-1])
        low = high = self.ys[start:stop]
        if finite is not None:
            low, high = np.where(finite, low, np.inf), np.where(finite, low, -np.inf)
        if stop - start < 2 * len(cuts) - 1:
            kept = np.arange(stop - start)
        else:
            kept = _extreme_indices(low, high, [int(cut) - start for cut in cuts])
        if finite is not None:
            kept = kept[finite[kept]]
        return kept + start


def _extreme_indices(low: Floats, high: Floats, cuts: Sequence[int]) -> Indices:
    """Return the indices of the smallest and the largest value of each part, ascending.

    `low` and `high` are the values with non-finite ones replaced by ∞ and -∞; `cuts` are the
    indices at which parts begin, and the end of the last part.
    """
    found: list[int] = []
    left = cuts[0]
    for right in cuts[1:]:
        if right - left <= 2:
            found.extend(range(left, right))
        else:
            least = left + int(low[left:right].argmin())
            most = left + int(high[left:right].argmax())
            found.extend((least, most) if least < most else (most, least))
        left = right
    return np.unique(np.array(found, dtype=np.int64))


def _split(picks: Indices, bad: Indices, xs: Floats, ys: Floats) -> tuple[tuple[Point, ...], ...]:
    """Return the points at the indices `picks`, split wherever an index in `bad` lies between."""
    if not len(picks):
        return ()
    points = list(zip(xs[picks].tolist(), ys[picks].tolist(), strict=True))
    if not len(bad):
        return (tuple(points),)
    ends = np.flatnonzero(np.diff(bad.searchsorted(picks))) + 1
    parts = [0, *ends.tolist(), len(points)]
    return tuple(tuple(points[a:b]) for a, b in pairwise(parts))


def _spread(indices: Indices, amount: int) -> Indices:
    """Return at most `amount` of the indices, evenly spaced."""
    return indices if len(indices) <= amount else indices[:: -(-len(indices) // amount)]


@dataclass(frozen=True)
class SmoothedSeries:
    """An exponential moving average without start-up bias, which ignores non-finite values."""

    beta: float
    total: float = 0.0
    weight: float = 0.0

    def push(self, value: float) -> SmoothedSeries:
        """Return the average after one more value."""
        return self.run(np.array([value]))[0]

    def run(self, values: Floats) -> tuple[SmoothedSeries, Floats]:
        """Return the average after more values, and its value after each of them `[N]`.

        The value is NaN before the first finite one.
        """
        counts = np.isfinite(values)
        total = _decay(values[counts] * (1 - self.beta), self.beta, self.total)
        missing = 1 - self.weight
        weight: Floats = np.ones(1)
        if missing > _NOTHING:
            weight = 1 - missing * np.power(self.beta, np.arange(len(total)), dtype=np.float64)
        with np.errstate(invalid="ignore", divide="ignore"):
            averages = np.where(weight > 0, total / weight, np.nan)
        shown: Floats = averages[counts.cumsum()]
        return SmoothedSeries(self.beta, float(total[-1]), float(weight[-1])), shown

    @property
    def value(self) -> float:
        """The average; NaN before the first finite value."""
        return self.total / self.weight if self.weight else float("nan")


_NOTHING = 1e-17
"""A weight that lacks less than this is 1 to the last digit."""
_BLOCK = 64
_AT_ONCE = 32
"""Blocks of one matrix product, so small that NumPy starts no threads for it."""


def _decay(inputs: Floats, beta: float, state: float) -> Floats:
    """Return all states of `s = beta·s + input`, including the one before the first input."""
    blocks = -(-len(inputs) // _BLOCK)
    padded = np.zeros((blocks, _BLOCK))
    padded.reshape(-1)[: len(inputs)] = inputs
    kernel, powers = _powers(beta)
    within = np.empty_like(padded)
    for at in range(0, blocks, _AT_ONCE):
        np.matmul(padded[at : at + _AT_ONCE], kernel, out=within[at : at + _AT_ONCE])
    carried = np.empty(blocks)
    for block, end in enumerate(within[:, -1].tolist()):
        carried[block] = state
        state = state * beta**_BLOCK + end
    within += np.outer(carried, powers)
    start = carried[:1] if blocks else np.array([state])
    return np.concatenate([start, within.reshape(-1)[: len(inputs)]])


@cache
def _powers(beta: float) -> tuple[Floats, Floats]:
    """Return what the inputs of a block add to its states, `[64, 64]`, and a carried state."""
    lag = np.subtract.outer(np.arange(_BLOCK), np.arange(_BLOCK))
    kernel = np.where(lag >= 0, beta ** np.maximum(lag, 0), 0.0)
    powers: Floats = np.power(beta, np.arange(1, _BLOCK + 1), dtype=np.float64)
    return np.ascontiguousarray(kernel.T), powers
