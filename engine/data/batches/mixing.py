"""Order of the records of a mix whose weights change during a run.

A run of equal weights is a segment. Each source has a walk through its own records: shuffled
passes, one after the other. A segment continues the walks where the one before has left them, so
that no record is repeated before all of its source were used, whatever the weights are. The order
is a pure function of seed, position and the list of changes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import msgspec
import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]


class MixChange(msgspec.Struct, frozen=True):
    """The weights of the sources from a position on."""

    position: int
    """Micro-batches of each rank since the start of the run."""
    weights: tuple[float, ...]
    """One weight per source."""


MixChanges = tuple[MixChange, ...]
"""Changes in the order of their positions, each of which differs from the one before."""


def changes_before(changes: Sequence[MixChange], position: int) -> MixChanges:
    """Return the changes that lie before a position."""
    return tuple(one for one in changes if one.position < position)


def changes_up_to(changes: Sequence[MixChange], position: int) -> MixChanges:
    """Return the changes that lie at a position or before it."""
    return tuple(one for one in changes if one.position <= position)


def same_mix(one: Sequence[float], other: Sequence[float]) -> bool:
    """Whether two lists of weights give the same shares."""
    if len(one) != len(other):
        return False
    left, right = sum(one), sum(other)
    return all(math.isclose(a * right, b * left) for a, b in zip(one, other, strict=True))


@dataclass(frozen=True)
class MixSchedule:
    """The configured weights of the sources by position, and the names of the sources."""

    names: tuple[str, ...]
    phases: MixChanges
    """The first one begins at position 0."""

    @property
    def start(self) -> tuple[float, ...]:
        """The configured weights at the beginning of the run."""
        return self.phases[0].weights

    def weights(self, position: int, chosen: Mapping[str, float]) -> tuple[float, ...]:
        """Return the weights at a position: the chosen ones; those of its phase if none are."""
        if chosen:
            return tuple(chosen[name] for name in self.names)
        return changes_up_to(self.phases, position)[-1].weights

    def after(self, changes: MixChanges, position: int, chosen: Mapping[str, float]) -> MixChanges:
        """Return the changes up to a position at which a step begins.

        Changes before it stay, later ones are dropped, and one at the position is added if the
        weights are others from then on. If the weights in the list belong to another number of
        sources, the list counts as empty.
        """
        if any(len(one.weights) != len(self.names) for one in changes):
            changes = ()
        before = changes_before(changes, position)
        wanted = self.weights(position, chosen)
        present = before[-1].weights if before else self.start
        return before if same_mix(present, wanted) else (*before, MixChange(position, wanted))


def shares_of(total: int, weights: Sequence[float]) -> tuple[int, ...]:
    """Split a total by weights into whole numbers, by largest remainder.

    Each is at least 1 unless the total is smaller than the number of weights. A weight of 0 has the
    share 0; at least one weight is above it.
    """
    exact = [total * weight / sum(weights) for weight in weights]
    shares = [max(1, int(share)) if share else 0 for share in exact]
    used = [index for index, share in enumerate(exact) if share]
    by_remainder = sorted(used, key=lambda i: shares[i] - exact[i])
    for index in by_remainder[: max(0, total - sum(shares))]:
        shares[index] += 1
    while sum(shares) > total:
        shares[shares.index(max(shares))] -= 1
    return tuple(shares)


@lru_cache(maxsize=4)
def epoch_order(count: int, seed: int, epoch: int) -> Indices:
    """Return a permutation of `range(count)`, shape [count].

    It sorts raw generator output, which NumPy keeps stable across versions and platforms, unlike
    `Generator.permutation`.
    """
    return shuffled(count, (seed, epoch))


def shuffled(count: int, key: Sequence[int]) -> Indices:
    """Return the permutation of `range(count)` that belongs to a key, shape [count]."""
    keys = np.random.PCG64(list(key)).random_raw(count)
    return np.argsort(keys, kind="stable").astype(np.int64)


@dataclass(frozen=True)
class Walk:
    """The position of a source in its order of records, in turns since the start of the run."""

    pending: Indices
    """Turns that were planned in an earlier segment and not used; they come first."""
    following: int = 0
    """The turn after those, from which on all are used in order."""

    def turns(self, start: int, stop: int) -> Indices:
        """Return the turns at the indices `start` to `stop` - 1 of the rest of the walk."""
        held = len(self.pending)
        late = np.arange(max(0, start - held), max(0, stop - held)) + self.following
        return np.concatenate([self.pending[start:stop], late]).astype(np.int64)

    def after(self, used: int, left: Indices) -> Walk:
        """Return the walk that follows a segment; turns that it planned and did not use come first.

        Args:
            used: number of turns that the segment planned.
            left: those of them that it did not use.
        """
        held = len(self.pending)
        pending = np.concatenate([left, self.pending[used:]])
        return Walk(pending, self.following + max(0, used - held))


@dataclass(frozen=True, eq=False)
class Segment:
    """A run of equal weights: cycles of all records, each in an order of its own."""

    start: int
    """Position of its first micro-batch."""
    counts: tuple[int, ...]
    """Number of records of each source."""
    shares: tuple[int, ...]
    """Number of records of each source in a cycle."""
    walks: tuple[Walk, ...]

    @classmethod
    def first(cls, counts: Sequence[int], shares: Sequence[int]) -> Segment:
        """Return the segment with which a run begins."""
        nothing = np.zeros(0, dtype=np.int64)
        return cls(0, tuple(counts), tuple(shares), tuple(Walk(nothing) for _ in counts))

    def plan(self, seed: int, cycle: int) -> tuple[Indices, Indices]:
        """Return source and turn of every record of a cycle, in order; each [sum of shares].

        In the first segment of a run the turns of a cycle are shuffled too, as in earlier versions.
        In later ones each source takes its turns one after the other, so that records that are left
        of a pass come before those of the next one.
        """
        each = [
            walk.turns(cycle * share, (cycle + 1) * share)
            for walk, share in zip(self.walks, self.shares, strict=True)
        ]
        sources = np.repeat(np.arange(len(self.shares)), self.shares)
        turns = np.concatenate(each)
        if not self.start:
            order = epoch_order(len(sources), seed, cycle)
            return sources[order], turns[order]
        sources = sources[shuffled(len(sources), (seed, self.start, cycle))]
        for source, own in enumerate(each):
            turns[sources == source] = own
        return sources, turns

    def order(self, seed: int, cycle: int) -> Indices:
        """Return the indices of the records of a cycle, in order, shape [sum of shares]."""
        sources, turns = self.plan(seed, cycle)
        records, offset = np.empty_like(turns), 0
        for source, count in enumerate(self.counts):
            mine = sources == source
            records[mine] = offset + records_of(turns[mine], count, seed + 1 + source)
            offset += count
        return records

    def next(self, seed: int, at: tuple[int, int], start: int, weights: Sequence[float]) -> Segment:
        """Return the segment that follows when the weights change.

        Args:
            seed: seed of the order.
            at: the cycle in which this segment ends, and the records that were used of it.
            start: position at which the next one begins.
            weights: its weights.
        """
        cycle, used = at
        sources, turns = self.plan(seed, cycle)
        unused_sources, unused_turns = sources[used:], turns[used:]
        walks = tuple(
            walk.after((cycle + 1) * share, unused_turns[unused_sources == source])
            for source, (walk, share) in enumerate(zip(self.walks, self.shares, strict=True))
        )
        shares = shares_of(sum(self.counts), weights)
        return Segment(start, self.counts, shares, walks)


def records_of(turns: Indices, count: int, seed: int) -> Indices:
    """Return the records of a source with `count` of them at some turns of its walk, [turns]."""
    passes, within = turns // count, turns % count
    found = np.empty_like(turns)
    for number in np.unique(passes).tolist():
        mine = passes == number
        found[mine] = epoch_order(count, seed, number)[within[mine]]
    return found


def ranges_of(counts: Sequence[int]) -> list[range]:
    """Return the indices of the records of each source; they stand one source after the other."""
    ends = itertools.accumulate(counts)
    return [range(end - count, end) for end, count in zip(ends, counts, strict=True)]
