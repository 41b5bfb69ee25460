"""Buckets: the padded lengths for which graphs are captured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

SHORTEST = 64
DOUBLING_UP_TO = 512
"""Longest bucket reached by doubling; a step of this length or less is short in any case.

Longer buckets come in four lengths per octave, which wastes less than 20 % on padding.
"""
RARE = 0.5
"""Micro-batches of a run below which a length is not worth a graph before it occurs."""
PER_OCTAVE = 4
"""Buckets per octave above `DOUBLING_UP_TO`."""


def bucket(length: int, longest: int) -> int:
    """Return the smallest bucket, in tokens, that holds rows of `length` tokens.

    The last bucket is `longest`; longer rows have a bucket of exactly their length.
    """
    if length <= DOUBLING_UP_TO:
        fitting = max(SHORTEST, 1 << (length - 1).bit_length())
    else:
        unit = (1 << ((length - 1).bit_length() - 1)) // PER_OCTAVE
        fitting = -(-length // unit) * unit
    return max(length, min(fitting, longest))


def buckets(longest: int) -> list[int]:
    """Return every bucket up to `longest` tokens."""
    return sorted({bucket(length, longest) for length in range(1, longest + 1)})


def buckets_ahead(
    lengths: Sequence[int], batch: int, micro_batches: int, longest: int
) -> list[int]:
    """Return the buckets that are likely to occur in a run, the longest first.

    A micro-batch is as long as the longest of its records, which are drawn at random.

    Args:
        lengths: Tokens of every record.
        batch: Records per micro-batch.
        micro_batches: Micro-batches of the run.
        longest: Longest bucket, in tokens.
    """
    records: Counter[int] = Counter()
    for length, count in Counter(lengths).items():
        records[bucket(max(1, length), longest)] += count
    found, shorter = [], 0
    for size, count in sorted(records.items()):
        within = shorter + count
        share = (within / len(lengths)) ** batch - (shorter / len(lengths)) ** batch
        if share * micro_batches >= RARE:
            found.append(size)
        shorter = within
    return found[::-1]
