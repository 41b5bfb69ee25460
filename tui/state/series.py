"""An append-only curve that can be drawn at any zoom without hiding a spike.

A `Series` is a value: appending returns a new one. The buffers behind it are shared and only ever
grow at the end, so a series held from earlier still sees exactly its own points and nothing is
copied per update. Index pyramids of the smallest and largest value per block make the extremes of
any range cheap. Past `CAPACITY` points the older ones are merged into their extremes.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

FANOUT = 16
CAPACITY = 1 << 18
"""Points kept per series; 4 MiB."""

Point = tuple[float, float]


@dataclass(frozen=True)
class Trace:
    """What to draw of a series: connected stretches, and where a value was not finite."""

    runs: tuple[tuple[Point, ...], ...] = ()
    gaps: tuple[float, ...] = ()


class _Store:
    """The shared buffers: x and y, the indices of non-finite values, and the pyramid."""

    __slots__ = ("bad", "levels", "xs", "ys")

    def __init__(self) -> None:
        self.xs = array("d")
        self.ys = array("d")
        self.bad = array("q")
        self.levels: list[tuple[array[int], array[int]]] = []

    def extend(self, xs: Iterable[float], ys: Iterable[float]) -> None:
        start = len(self.ys)
        self.xs.extend(xs)
        self.ys.extend(ys)
        for index in range(start, len(self.ys)):
            if not math.isfinite(self.ys[index]):
                self.bad.append(index)
        self._grow()

    def _grow(self) -> None:
        level, size = 0, FANOUT
        while len(self.ys) >= size:
            if level == len(self.levels):
                self.levels.append((array("q"), array("q")))
            lows, highs = self.levels[level]
            for block in range(len(lows), len(self.ys) // size):
                low, high = self.extremes(block * size, (block + 1) * size, below=level)
                lows.append(low)
                highs.append(high)
            level, size = level + 1, size * FANOUT

    def extremes(self, start: int, stop: int, below: int | None = None) -> tuple[int, int]:
        """Indices of the smallest and largest finite value in [start, stop); -1 when none is."""
        ys = self.ys
        usable = [
            i for i in self._candidates(start, stop, below) if i >= 0 and math.isfinite(ys[i])
        ]
        if not usable:
            return -1, -1
        return min(usable, key=ys.__getitem__), max(usable, key=ys.__getitem__)

    def _candidates(self, start: int, stop: int, below: int | None) -> Iterator[int]:
        """Indices among which the extremes of a range are: its ragged ends and whole blocks."""
        depth = len(self.levels) if below is None else below
        level, size = -1, 1
        while level + 1 < depth:
            first, last = -(-start // FANOUT), stop // FANOUT
            if first >= last:
                break
            yield from self._at(level, start, first * FANOUT)
            yield from self._at(level, last * FANOUT, stop)
            start, stop, level, size = first, last, level + 1, size * FANOUT
        yield from self._at(level, start, stop)

    def _at(self, level: int, start: int, stop: int) -> Iterator[int]:
        if level < 0:
            yield from range(start, stop)
        else:
            lows, highs = self.levels[level]
            yield from lows[start:stop]
            yield from highs[start:stop]

    def first(self, length: int) -> _Store:
        """A copy of the first points, for the rare case that two histories part."""
        other = _Store()
        other.extend(self.xs[:length], self.ys[:length])
        return other

    def merged(self) -> _Store:
        """A smaller store: old points in fours give way to their extremes, in order."""
        keep = len(self.ys) // 4 * 3
        picked: list[int] = []
        for start in range(0, keep, 4):
            block = {*self.extremes(start, start + 4, below=0), self._first_bad(start, start + 4)}
            picked.extend(sorted(block - {-1}))
        picked.extend(range(keep, len(self.ys)))
        other = _Store()
        other.extend((self.xs[i] for i in picked), (self.ys[i] for i in picked))
        return other

    def _first_bad(self, start: int, stop: int) -> int:
        at = bisect_left(self.bad, start)
        return self.bad[at] if at < len(self.bad) and self.bad[at] < stop else -1


@dataclass(frozen=True, eq=False)
class Series:
    """A curve: x never falls, y may be NaN or infinite."""

    _store: _Store = field(default_factory=_Store)
    _length: int = 0

    def __len__(self) -> int:
        return self._length

    def extend(self, xs: Sequence[float], ys: Sequence[float]) -> Series:
        """The series with more points at its end."""
        if not xs:
            return self
        store = self._store
        if self._length != len(store.ys):
            store = store.first(self._length)
        store.extend(xs, ys)
        if len(store.ys) > CAPACITY:
            store = store.merged()
        return Series(store, len(store.ys))

    def append(self, x: float, y: float) -> Series:
        """The series with one more point."""
        return self.extend((x,), (y,))

    @property
    def last(self) -> Point | None:
        """The newest point."""
        return (
            (self._store.xs[self._length - 1], self._store.ys[self._length - 1]) if self else None
        )

    @property
    def first_x(self) -> float | None:
        """The oldest x."""
        return self._store.xs[0] if self else None

    def at(self, x: float) -> float | None:
        """The value at x or the nearest earlier point."""
        index = bisect_right(self._store.xs, x, 0, self._length) - 1
        return self._store.ys[index] if index >= 0 else None

    def tail(self, amount: int) -> list[float]:
        """The newest values, oldest first."""
        return self._store.ys[max(0, self._length - amount) : self._length].tolist()

    def head(self, amount: int) -> list[float]:
        """The oldest values."""
        return self._store.ys[: min(amount, self._length)].tolist()

    def trace(self, x0: float, x1: float, columns: int) -> Trace:
        """At most two points per column of [x0, x1]: the extremes, at their true places.

        Raises:
            ValueError: columns < 1.
        """
        if columns < 1:
            raise ValueError(f"columns must be ≥ 1, got {columns}")
        start = bisect_left(self._store.xs, x0, 0, self._length)
        stop = bisect_right(self._store.xs, x1, 0, self._length)
        bad = self._store.bad
        gaps = bad[bisect_left(bad, start) : bisect_left(bad, stop)]
        runs = self._split(self._picks(start, stop, x0, (x1 - x0) / columns, columns), gaps)
        return Trace(runs, tuple(self._store.xs[i] for i in _spread(gaps, columns)))

    def _picks(self, start: int, stop: int, x0: float, width: float, columns: int) -> Iterator[int]:
        xs = self._store.xs
        for column in range(1, columns + 1):
            edge = bisect_left(xs, x0 + column * width, start, stop) if column < columns else stop
            if edge - start <= 2:
                yield from range(start, edge)
            else:
                yield from sorted({*self._store.extremes(start, edge)} - {-1})
            start = edge

    def _split(self, picks: Iterable[int], gaps: Sequence[int]) -> tuple[tuple[Point, ...], ...]:
        xs, ys = self._store.xs, self._store.ys
        if not gaps:
            whole = tuple((xs[i], ys[i]) for i in picks)
            return (whole,) if whole else ()
        runs: dict[int, list[Point]] = {}
        for index in picks:
            if math.isfinite(ys[index]):
                runs.setdefault(bisect_left(gaps, index), []).append((xs[index], ys[index]))
        return tuple(tuple(run) for run in runs.values())


def _spread(indices: Sequence[int], amount: int) -> Sequence[int]:
    """At most `amount` of the indices, evenly taken."""
    return indices if len(indices) <= amount else indices[:: -(-len(indices) // amount)]


@dataclass(frozen=True)
class Ema:
    """An exponential moving average without start-up bias; non-finite values do not enter."""

    beta: float
    total: float = 0.0
    weight: float = 0.0

    def push(self, value: float) -> Ema:
        """The average after one more value."""
        if not math.isfinite(value):
            return self
        keep = self.beta
        return Ema(keep, keep * self.total + (1 - keep) * value, keep * self.weight + (1 - keep))

    @property
    def value(self) -> float:
        """NaN before the first finite value."""
        return self.total / self.weight if self.weight else math.nan
