"""Pack several documents into each row of `max_length` tokens instead of padding them.

The packing depends only on the lengths, so it is reproducible and positions in the data stay exact.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence

from .examples import PackedExample, TextExample


def pack_examples(examples: Sequence[TextExample], max_length: int) -> list[PackedExample]:
    """Pack examples into rows of at most `max_length` tokens; every example is in one row."""
    lengths = [example.length for example in examples]
    return [
        PackedExample(tuple(examples[index] for index in row))
        for row in best_fit(lengths, max_length)
    ]


def best_fit(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Return the indices of the documents in each row, placed by best-fit decreasing.

    The longest documents come first, equal lengths in their order; each goes into the fullest row
    that still has room for it.

    Args:
        lengths: Tokens per document, none above `capacity`.
        capacity: Tokens per row.

    Source: Johnson, Demers, Ullman, Garey, Graham 1974: at most 11/9 of the optimal number of rows.
    """
    rows: list[list[int]] = []
    room: list[tuple[int, int]] = []
    """(free tokens, row) of each row, ascending."""
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        length = lengths[index]
        place = bisect_left(room, (length, 0))
        if place < len(room):
            left, row = room.pop(place)
        else:
            left, row = capacity, len(rows)
            rows.append([])
        rows[row].append(index)
        insort(room, (left - length, row))
    return rows
