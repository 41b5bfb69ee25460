"""An append-only curve that can be drawn at any zoom without hiding a spike.

A `Series` is a value: appending returns a new one. The buffers behind it are shared and only ever
grow at the end, so a series held from earlier still sees exactly its own points and nothing is
copied per update. Past `CAPACITY` points the older ones are merged into their extremes, so that a
run of any length takes the same room.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

CAPACITY = 1 << 16
"""Points kept per series; 1 MiB."""
_NEWEST = 8
"""One in so many points is among the newest, which are all kept."""

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]
Point = tuple[float, float]


@dataclass(frozen=True)
class Trace:
    """What to draw of a series: connected stretches, and where a value was not finite."""

    runs: tuple[tuple[Point, ...], ...] = ()
    gaps: tuple[float, ...] = ()


class _Store:
    """The shared buffers, of which the first `length` points are in use."""

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
        """A copy of the first points, for the rare case that two histories part."""
        other = _Store(length + 1)
        other.extend(self.xs[:length], self.ys[:length], length)
        return other

    def merged(self) -> _Store:
        """A smaller store: all but the newest points give way to the extremes of equal parts.

        The parts are as wide everywhere, so that no stretch of history fades with its age.
        """
        old = self.length - CAPACITY // _NEWEST
        xs, ys = self.xs[:old], self.ys[:old]
        parts = _parts(xs, CAPACITY // 8)
        odd = ~np.isfinite(ys)
        kept = np.zeros(old, dtype=bool)
        kept[_firsts(parts, ys == _per_part(np.minimum, np.where(odd, np.inf, ys), parts))] = True
        kept[_firsts(parts, ys == _per_part(np.maximum, np.where(odd, -np.inf, ys), parts))] = True
        kept[_firsts(parts, odd)] = True
        keep = np.concatenate([np.flatnonzero(kept), np.arange(old, self.length)])
        other = _Store(CAPACITY + CAPACITY // 4)
        other.extend(self.xs[keep], self.ys[keep], len(keep))
        return other


def _parts(xs: Floats, amount: int) -> Indices:
    """The part each x falls into: at most `amount` of them, as wide as a power of two."""
    width = 2.0 ** np.ceil(np.log2(max(xs[-1] - xs[0], 1.0) / amount))
    found: Indices = np.floor(xs / width).astype(np.int64)
    return found


def _per_part(reduce: np.ufunc, ys: Floats, parts: Indices) -> Floats:
    """The extreme of its part, beside every value."""
    starts = np.concatenate([[0], np.flatnonzero(np.diff(parts)) + 1])
    extremes: Floats = np.repeat(
        reduce.reduceat(ys, starts), np.diff(np.concatenate([starts, [len(ys)]]))
    )
    return extremes


def _firsts(parts: Indices, wanted: NDArray[np.bool_]) -> Indices:
    """The first wanted place of every part that has one."""
    places = np.flatnonzero(wanted)
    new = np.diff(parts[places], prepend=parts[0] - 1) != 0
    found: Indices = places[new]
    return found


@dataclass(frozen=True, eq=False)
class Series:
    """A curve: x never falls, y may be NaN or infinite."""

    _store: _Store = field(default_factory=_Store)
    _length: int = 0

    def __len__(self) -> int:
        return self._length

    @property
    def xs(self) -> Floats:
        """All x, oldest first."""
        return self._store.xs[: self._length]

    @property
    def ys(self) -> Floats:
        """All y, oldest first."""
        return self._store.ys[: self._length]

    def extend(self, xs: ArrayLike, ys: ArrayLike) -> Series:
        """The series with more points at its end."""
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
        """The series with one more point."""
        return self.extend((x,), (y,))

    @property
    def last(self) -> Point | None:
        """The newest point."""
        return (float(self.xs[-1]), float(self.ys[-1])) if self else None

    @property
    def first_x(self) -> float | None:
        """The oldest x."""
        return float(self.xs[0]) if self else None

    def at(self, x: float) -> float | None:
        """The value at x or the nearest earlier point."""
        index = int(self.xs.searchsorted(x, side="right")) - 1
        return float(self.ys[index]) if index >= 0 else None

    def tail(self, amount: int) -> list[float]:
        """The newest values, oldest first."""
        return [float(y) for y in self.ys[max(0, self._length - amount) :]]

    def head(self, amount: int) -> list[float]:
        """The oldest values."""
        return [float(y) for y in self.ys[:amount]]

    def trace(self, x0: float, x1: float, columns: int) -> Trace:
        """At most two points per column of [x0, x1]: the extremes, at their true places.

        Raises:
            ValueError: columns < 1.
        """
        if columns < 1:
            raise ValueError(f"columns must be ≥ 1, got {columns}")
        return self.trace_between(np.linspace(x0, x1, columns + 1))

    def trace_between(self, edges: Floats) -> Trace:
        """At most two points between each pair of neighbouring edges (rising, two or more)."""
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
    """Indices of the smallest and largest value of each part, in order."""
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
    """The picked points, parted wherever a value between them was not finite."""
    if not len(picks):
        return ()
    points = list(zip(xs[picks].tolist(), ys[picks].tolist(), strict=True))
    if not len(bad):
        return (tuple(points),)
    ends = np.flatnonzero(np.diff(bad.searchsorted(picks))) + 1
    parts = [0, *ends.tolist(), len(points)]
    return tuple(tuple(points[a:b]) for a, b in pairwise(parts))


def _spread(indices: Indices, amount: int) -> Indices:
    """At most `amount` of the indices, evenly taken."""
    return indices if len(indices) <= amount else indices[:: -(-len(indices) // amount)]


@dataclass(frozen=True)
class SmoothedSeries:
    """An exponential moving average without start-up bias; non-finite values do not enter."""

    beta: float
    total: float = 0.0
    weight: float = 0.0

    def push(self, value: float) -> SmoothedSeries:
        """The average after one more value."""
        return self.run(np.array([value]))[0]

    def run(self, values: Floats) -> tuple[SmoothedSeries, Floats]:
        """The average after more values, and what it was after each of them."""
        counts = np.isfinite(values)
        total = _decay(values[counts] * (1 - self.beta), self.beta, self.total)
        weight = 1 - (1 - self.weight) * self.beta ** np.arange(len(total))
        with np.errstate(invalid="ignore", divide="ignore"):
            averages = np.where(weight > 0, total / weight, np.nan)
        shown: Floats = averages[counts.cumsum()]
        return SmoothedSeries(self.beta, float(total[-1]), float(weight[-1])), shown

    @property
    def value(self) -> float:
        """NaN before the first finite value."""
        return self.total / self.weight if self.weight else float("nan")


_BLOCK = 64


def _decay(inputs: Floats, beta: float, state: float) -> Floats:
    """The states of `s = beta·s + input`, the one before the first input included."""
    blocks = -(-len(inputs) // _BLOCK)
    padded = np.zeros(blocks * _BLOCK)
    padded[: len(inputs)] = inputs
    lag = np.subtract.outer(np.arange(_BLOCK), np.arange(_BLOCK))
    kernel = np.where(lag >= 0, beta ** np.maximum(lag, 0), 0.0)
    within = padded.reshape(blocks, _BLOCK) @ kernel.T
    carried = np.empty(blocks)
    for block, end in enumerate(within[:, -1].tolist()):
        carried[block] = state
        state = state * beta**_BLOCK + end
    states = within + np.outer(carried, beta ** np.arange(1, _BLOCK + 1))
    start = carried[:1] if blocks else np.array([state])
    return np.concatenate([start, states.ravel()[: len(inputs)]])
