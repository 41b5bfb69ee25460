"""The standing of every rank: its times against those of the others, its memory, its throughput."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fttui.engine.protocol.thresholds import SLOW_RANK_RATIO

from ..branches import lineage
from ..run_view import RunView

Floats = NDArray[np.float64]
Order = Literal["slowest", "rank", "memory", "throughput"]
ORDERS: tuple[Order, ...] = ("slowest", "rank", "memory", "throughput")
"""Orders of the ranks; in all of them the ranks of a node stay together."""
RECORDS = 400
"""Newest records with the times of all ranks that are looked at."""
WEIGHT = 1 / 25
"""Share of the newest record in the smoothed lead; that of the anomaly detector."""
RATE_RECORDS = 10
"""Records over which the throughput of a rank is taken."""


@dataclass(frozen=True)
class Standing:
    """One rank beside the others."""

    rank: int
    node: int = 0
    host: str = ""
    device: str = ""
    seconds: float | None = None
    """Seconds of the newest listed step before the rank waits for the others."""
    behind: float = 0.0
    """Smoothed time over the median of the others, minus 1."""
    slow_steps: int = 0
    """Steps for which it has been slower than the threshold of the detector; 0 if it is not."""
    slow_since: int | None = None
    """Step at which that began; None if it is not slow, or if it began before the known records."""
    tokens_per_s: float | None = None
    mem_bytes: float | None = None
    util: float | None = None
    temp_c: float | None = None
    power_w: float | None = None

    @property
    def slow(self) -> bool:
        """Whether the others wait for this rank."""
        return self.slow_steps > 0


def standings(run: RunView) -> tuple[Standing, ...]:
    """Return the standing of every rank, ordered by rank; empty before the devices are known."""
    started = run.started
    devices = list(started.devices) if started else []
    ranks = max(len(devices), _listed(run))
    places = [_place(run, rank) for rank in range(ranks)]
    leads = _leads(run, ranks)
    rates = _rates(run, ranks)
    return tuple(
        Standing(
            rank,
            *places[rank],
            devices[rank] if rank < len(devices) else "",
            seconds=_newest(run, "rank_s", rank),
            behind=leads[rank][0],
            slow_steps=leads[rank][1],
            slow_since=leads[rank][2],
            tokens_per_s=rates[rank],
            mem_bytes=_newest(run, "rank_mem_bytes", rank),
            util=_newest(run, "rank_util", rank),
            temp_c=_newest(run, "rank_temp_c", rank),
            power_w=_newest(run, "rank_power_w", rank),
        )
        for rank in range(ranks)
    )


def by_node(ranks: Sequence[Standing], order: Order) -> list[list[Standing]]:
    """Return the ranks of each node together, nodes and ranks in the order that is wanted.

    A node stands where its first rank would stand: with `slowest` the node of the slowest rank is
    the first, and that rank the first of its node.
    """
    first: dict[int, int] = {}
    ordered = sorted(ranks, key=lambda one: _key(one, order))
    for place, one in enumerate(ordered):
        first.setdefault(one.node, place)
    together = sorted(ordered, key=lambda one: first[one.node])
    return [list(group) for _, group in groupby(together, key=lambda one: one.node)]


def _key(one: Standing, order: Order) -> tuple[float, int]:
    match order:
        case "slowest":
            return -one.behind, one.rank
        case "memory":
            return -(one.mem_bytes or 0.0), one.rank
        case "throughput":
            return (math.inf if one.tokens_per_s is None else one.tokens_per_s), one.rank
        case _:
            return one.rank, one.rank


def _place(run: RunView, rank: int) -> tuple[int, str]:
    """Return the node of a rank and the host of that node."""
    started = run.started
    if started is None or rank >= len(started.rank_hosts):
        return 0, started.host if started else ""
    node, _, host = started.rank_hosts[rank].partition(" ")
    return (int(node) if node.isdecimal() else 0), host


def _listed(run: RunView) -> int:
    """Return the number of ranks that steps have listed; 0 for a single rank."""
    newest = run.branches[-1].curves if run.branches else {}
    return sum(name.startswith("rank_s.") for name in newest)


def _newest(run: RunView, name: str, rank: int) -> float | None:
    """Return the newest known figure of a rank; not every step lists those of all ranks."""
    ys = _points(run, f"{name}.{rank}")[1]
    return float(ys[-1]) if len(ys) else None


def _leads(run: RunView, ranks: int) -> list[tuple[float, int, int | None]]:
    """Return, for each rank, how far it is behind, for how many steps it is slow, and since when.

    It follows the anomaly detector: the log ratio to the median of the others, smoothed.
    """
    xs, seconds = _table(run, "rank_s", ranks)
    if ranks < 2 or not len(xs):
        return [(0.0, 0, None)] * ranks
    ratios = np.log(seconds / _others(seconds))
    lead, slow = np.zeros(ranks), np.zeros((ranks, len(xs)), dtype=bool)
    for at in range(len(xs)):
        lead += WEIGHT * (ratios[:, at] - lead)
        slow[:, at] = lead > math.log(SLOW_RANK_RATIO)
    found: list[tuple[float, int, int | None]] = []
    for rank in range(ranks):
        quick = np.flatnonzero(~slow[rank])
        start = int(quick[-1]) + 1 if len(quick) else 0
        steps = int(xs[-1] - xs[start]) + 1 if start < len(xs) else 0
        since = int(xs[start]) if steps and (start or len(xs) < RECORDS) else None
        found.append((math.expm1(lead[rank]), steps, since))
    return found


def _others(seconds: Floats) -> Floats:
    """Return, for each rank and record, the median of the others `[ranks, records]`."""
    ordered = np.sort(seconds, axis=0)
    at, left = seconds.argsort(axis=0).argsort(axis=0), len(seconds) - 1
    upper = left // 2 + (at <= left // 2)
    middle: Floats = np.take_along_axis(ordered, upper, axis=0)
    if left % 2 == 0:
        lower = left // 2 - 1 + (at <= left // 2 - 1)
        middle = (np.take_along_axis(ordered, lower, axis=0) + middle) / 2
    return middle


def _rates(run: RunView, ranks: int) -> list[float | None]:
    """Return the throughput of each rank in tokens per second; None where it is not known."""
    records = min(RATE_RECORDS, *(len(_table(run, name, ranks)[0]) for name in _RATE_OF))
    if not records:
        return [None] * ranks
    amounts, seconds = (_table(run, name, ranks)[1][:, -records:].sum(axis=1) for name in _RATE_OF)
    return [float(rate) for rate in amounts / seconds]


_RATE_OF = ("rank_tokens", "rank_s")


def _table(run: RunView, name: str, ranks: int) -> tuple[Floats, Floats]:
    """Return the newest steps that list a figure of every rank, and it `[ranks, records]`.

    Where the older records of a rank were thinned out, its last known value stands for them.
    """
    points = [_points(run, f"{name}.{rank}") for rank in range(ranks)]
    if not points or any(not len(xs) for xs, _ in points):
        return np.empty(0), np.empty((ranks, 0))
    xs = points[0][0]
    rows = [ys[np.maximum(0, at.searchsorted(xs, side="right") - 1)] for at, ys in points]
    table: Floats = np.stack(rows)
    known = (np.isfinite(table) & ((table > 0) | (name != "rank_s"))).all(axis=0)
    return xs[known], table[:, known]


def _points(run: RunView, name: str) -> tuple[Floats, Floats]:
    """Return the newest points of a curve at the steps that the weights descend from."""
    parts: list[tuple[Floats, Floats]] = []
    for index, end in lineage(run.branches, len(run.branches) - 1):
        series = run.branches[index].curves.get(name)
        stop = 0 if series is None else int(series.xs.searchsorted(end, side="right"))
        if series is not None and stop:
            parts.insert(0, (series.xs[:stop][-RECORDS:], series.ys[:stop][-RECORDS:]))
        if sum(len(xs) for xs, _ in parts) >= RECORDS:
            break
    if not parts:
        return np.empty(0), np.empty(0)
    xs, ys = (np.concatenate(column)[-RECORDS:] for column in zip(*parts, strict=True))
    return xs, ys
