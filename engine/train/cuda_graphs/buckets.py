"""Buckets: the padded lengths for which graphs are captured."""

from __future__ import annotations

SHORTEST = 64
DOUBLING_UP_TO = 512
"""Longest bucket reached by doubling; a step of this length or less is short in any case.

Longer buckets come in four lengths per octave, which wastes less than 20 % on padding.
"""
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
