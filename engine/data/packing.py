"""Several short documents in one row of `max_length`, so that no step is spent on padding.

A packing depends on the lengths alone: it is part of the data order, and positions stay exact.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence

from .examples import PackedExample, TextExample


def pack_examples(examples: Sequence[TextExample], max_length: int) -> list[PackedExample]:
    """Examples as rows of at most `max_length` tokens; each is whole and in exactly one."""
    lengths = [example.length for example in examples]
    return [
        PackedExample(tuple(examples[index] for index in row))
        for row in best_fit(lengths, max_length)
    ]


def best_fit(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Indices by row: best-fit decreasing, equal lengths in their order.

    Every length goes, the longest first, into the fullest row that still has room for it.

    Args:
        lengths: tokens per document, none above `capacity`.
        capacity: tokens per row.

    Source: Johnson, Demers, Ullman, Garey, Graham 1974, at most 11/9 of the best possible rows.
    """
    rows: list[list[int]] = []
    room: list[tuple[int, int]] = []
    """(tokens left, row), ascending."""
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
