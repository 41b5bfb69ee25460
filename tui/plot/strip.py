"""A strip: one bar of one cell per rank, for figures of many ranks in a line."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

BARS = "▁▂▃▄▅▆▇█"
UNKNOWN = "·"


@dataclass(frozen=True)
class StripCell:
    """One cell of a strip."""

    sign: str
    marked: bool
    gap: bool
    """Whether a space stands before it, because another node begins."""


def strip(
    values: Sequence[float | None],
    marked: Sequence[bool],
    nodes: Sequence[int],
    width: int,
    *,
    highest_is_worst: bool,
) -> tuple[list[StripCell], int]:
    """Return the cells of a strip, and how many ranks share a cell.

    Bars begin at 0 and end at the highest value. A cell of several ranks shows the worst of them,
    and is marked if one of them is.

    Args:
        values: a figure of each rank; None where it is not known.
        marked: whether a rank stands out.
        nodes: the node of each rank.
        width: the most cells, with the gaps between nodes; without room for gaps there are none.
        highest_is_worst: whether the highest of several values stands for them, or the lowest.
    """
    share = max(1, math.ceil(len(values) / max(1, width)))
    cells = math.ceil(len(values) / share)
    gaps = share == 1 and cells + len(set(nodes)) - 1 <= width
    top = max((value for value in values if value is not None), default=0.0)
    found = []
    for first in range(0, len(values), share):
        known = [value for value in values[first : first + share] if value is not None]
        worst = (max if highest_is_worst else min)(known) if known else None
        begins = gaps and first > 0 and nodes[first] != nodes[first - 1]
        found.append(StripCell(_bar(worst, top), any(marked[first : first + share]), begins))
    return found, share


def _bar(value: float | None, top: float) -> str:
    if value is None or top <= 0:
        return UNKNOWN
    return BARS[min(len(BARS) - 1, max(0, math.ceil(value / top * len(BARS)) - 1))]
