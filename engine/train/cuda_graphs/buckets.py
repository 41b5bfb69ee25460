"""Buckets: the padded lengths for which graphs are captured."""

from __future__ import annotations

SHORTEST = 64
DOUBLING_UP_TO = 512
"""Below, a step is short whatever its length; above, four lengths per octave waste under 20 %."""
PER_OCTAVE = 4


def bucket(length: int, longest: int) -> int:
    """Tokens per row of the smallest graph that holds `length`; `longest` is such a length too."""
    if length <= DOUBLING_UP_TO:
        fitting = max(SHORTEST, 1 << (length - 1).bit_length())
    else:
        unit = (1 << ((length - 1).bit_length() - 1)) // PER_OCTAVE
        fitting = -(-length // unit) * unit
    return max(length, min(fitting, longest))


def buckets(longest: int) -> list[int]:
    """Return every bucket up to `longest` tokens."""
    return sorted({bucket(length, longest) for length in range(1, longest + 1)})
