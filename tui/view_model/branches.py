"""The curves of a run, in one branch per stretch of history between rollbacks and resumes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from fttui.engine.protocol.events import EvalFinished
from fttui.engine.protocol.races.variant_step import VariantStep

from .series import Floats, Point, Series, SmoothedSeries
from .step_batch import Steps

SMOOTHINGS = (0.98, 0.9, 0.995)
"""EMA factors of the smoothed loss curves; the first is the default."""
EVAL = "eval."
TOKENS = "tokens_total"
CLIPPED = "clipped_total"
USAGE = "usage."
"""Beginning of the names of the curves of what the run has used."""
SLOWEST, FASTEST = "rank_s max", "rank_s min"
FULLEST, EMPTIEST = "rank_mem_bytes max", "rank_mem_bytes min"
Flags = NDArray[np.bool_]


def smoothed(beta: float) -> str:
    """Return the name of the loss curve smoothed with this EMA factor."""
    return f"loss~{beta:g}"


@dataclass(frozen=True)
class Branch:
    """A stretch of training without a rollback or resume, and its curves."""

    timeline: int = 1
    start: int = 0
    """The step from which it continues its parent."""
    parent: int | None = None
    """Index of the branch that it forked from; None for the first."""
    curves: Mapping[str, Series] = field(default_factory=dict)
    averages: tuple[SmoothedSeries, ...] = tuple(SmoothedSeries(beta) for beta in SMOOTHINGS)
    totals: Mapping[str, float] = field(default_factory=dict)
    """Sums since the run began, by the name of their curve; an absent one is 0."""

    def extend(self, steps: Steps) -> Branch:
        """Return the branch with one or more further steps, which follow its last one."""
        xs = steps.step.astype(np.float64)
        grown = dict(self.curves)
        for name, column, present in _columns(steps):
            known = slice(None) if present is None else present
            grown[name] = grown.get(name, _EMPTY).extend(xs[known], column[known])
        for field_, (places, values) in steps.sparse.items():
            if field_ not in _UNWANTED:
                name = _curve(field_)
                grown[name] = grown.get(name, _EMPTY).extend(xs[places], values)
        loss = steps.columns.get("loss", np.full(len(xs), np.nan))
        averages = tuple(_smooth(grown, average, xs, loss) for average in self.averages)
        totals = {name: self._sums(name, steps.columns.get(of)) for name, of in _SUMS.items()}
        for name, sums in totals.items():
            if sums is not None:
                grown[name] = grown.get(name, _EMPTY).extend(xs, sums)
        newest = {name: float(sums[-1]) for name, sums in totals.items() if sums is not None}
        return replace(self, curves=grown, averages=averages, totals={**self.totals, **newest})

    def _sums(self, name: str, column: Floats | None) -> Floats | None:
        """Return the sum of a value since the run began, after each of some steps `[N]`.

        `column` is the value at these steps; None without it. NaN counts as 0.
        """
        if column is None:
            return None
        sums: Floats = self.totals.get(name, 0.0) + np.cumsum(np.nan_to_num(column))
        return sums

    def evaluated(self, step: int, event: EvalFinished) -> Branch:
        """Return the branch with the metrics of an evaluation at `step`."""
        grown = dict(self.curves)
        for name, value in event.metrics.items():
            grown[EVAL + name] = grown.get(EVAL + name, _EMPTY).append(step, value)
        return replace(self, curves=grown)

    def trained_beside(self, event: VariantStep) -> Branch:
        """Return the branch with a step that a variant has trained beside the run."""
        grown = dict(self.curves)
        for name, value in event.metrics.items():
            grown[EVAL + name] = grown.get(EVAL + name, _EMPTY).append(event.at, value)
        if event.loss is None:
            return replace(self, curves=grown)
        xs, loss = np.array([float(event.at)]), np.array([event.loss])
        grown["loss"] = grown.get("loss", _EMPTY).extend(xs, loss)
        averages = tuple(_smooth(grown, average, xs, loss) for average in self.averages)
        return replace(self, curves=grown, averages=averages)

    def measured(self, step: int, values: Mapping[str, float]) -> Branch:
        """Return the branch with values that were measured later, at any of its steps.

        A value takes the place of an earlier one at the same step.
        """
        grown = dict(self.curves)
        for name, value in values.items():
            known = grown.get(name, _EMPTY)
            points = dict(zip(known.xs.tolist(), known.ys.tolist(), strict=True)) | {step: value}
            grown[name] = _EMPTY.extend(sorted(points), [points[x] for x in sorted(points)])
        return replace(self, curves=grown)

    @property
    def last_step(self) -> int:
        """The newest step of the branch; before its first one, the step from which it continues."""
        loss = self.curves.get("loss")
        return int(loss.last[0]) if loss and loss.last else self.start

    def fork(self, timeline: int, step: int, own_index: int) -> Branch:
        """Return a new branch without curves that continues from a step of this one.

        Its averages and its totals begin with those of this branch at that step.

        Args:
            timeline: the timeline of the new branch.
            step: the newest step that both have in common.
            own_index: the index of this branch, which becomes the parent of the new one.
        """
        values = (
            series.at(step) if (series := self.curves.get(smoothed(a.beta))) else None
            for a in self.averages
        )
        seeded = tuple(
            SmoothedSeries(a.beta)
            if value is None or not math.isfinite(value)
            else SmoothedSeries(a.beta, value, 1.0)
            for a, value in zip(self.averages, values, strict=True)
        )
        totals = {name: self._total_at(name, step) for name in _SUMS}
        return Branch(
            timeline=timeline, start=step, parent=own_index, averages=seeded, totals=totals
        )

    def _total_at(self, name: str, step: int) -> float:
        known = self.curves.get(name)
        return (known.at(step) if known else self.totals.get(name)) or 0.0


_EMPTY = Series()
_SUMS = {TOKENS: "tokens", CLIPPED: "clipped"}
"""Names of the curves that are sums over the steps since the run began, and what they sum."""
_UNWANTED = frozenset({"clipped", "skipped", "tokens", "samples", "mem_total_bytes"})
_BANDS = {"rank_s.": (SLOWEST, FASTEST), "rank_mem_bytes.": (FULLEST, EMPTIEST)}
"""Prefixes of values per rank, and the curves of their maximum and minimum."""

_NEEDED_WHOLE = frozenset({"loss", "data_s", "step_s", *_SUMS.values()})

Column = tuple[str, Floats, Flags | None]
"""Name, values, and a mask of the steps that have a value; None if all have one."""


def _columns(steps: Steps) -> Iterator[Column]:
    """Yield the columns that become curves, under the names that the app shows.

    Time, the share of a step that waits for data, and the extremes over the ranks are computed.
    """
    for field_, column in steps.columns.items():
        if field_ in _UNWANTED:
            continue
        yield _curve(field_), column, steps.present.get(field_)
    yield "time", steps.time, None
    if {"data_s", "step_s"} <= steps.columns.keys():
        data, whole = steps.columns["data_s"], steps.columns["step_s"]
        yield "data_share", data / np.where(whole > 0, whole, 1.0), whole > 0
    for start, (most, least) in _BANDS.items():
        ranks = [column for name, column in steps.columns.items() if name.startswith(start)]
        if ranks:
            yield most, np.fmax.reduce(ranks), None
            yield least, np.fmin.reduce(ranks), None


def _curve(field_: str) -> str:
    """Return the name of the curve of a column."""
    name = field_.removeprefix("extra.")
    return f"loss.{name[6:]}" if name.startswith("parts.") else name


def needed_whole(field_: str) -> bool:
    """Return whether all values of a column are needed, not only its extremes.

    Averages, sums and what is computed from several columns need them.
    """
    return field_ in _NEEDED_WHOLE or field_.startswith(tuple(_BANDS))


def _smooth(
    grown: dict[str, Series], average: SmoothedSeries, xs: Floats, losses: Floats
) -> SmoothedSeries:
    average, values = average.run(losses)
    known = np.isfinite(values)
    name = smoothed(average.beta)
    grown[name] = grown.get(name, _EMPTY).extend(xs[known], values[known])
    return average


def series_on(branches: Sequence[Branch], newest: int, name: str) -> Iterator[float]:
    """Yield a metric's values on the branch of index `newest` and at the steps it descends from.

    The newest branch comes first; its values come in the order of its steps, as do those of each
    earlier one.
    """
    for index, end in lineage(branches, newest):
        series = branches[index].curves.get(name)
        if series is not None:
            yield from series.ys[: series.xs.searchsorted(end, side="right")].tolist()


def parts_of(branches: Sequence[Branch]) -> tuple[str, ...]:
    """Return the names of the parts of the loss, such as `ce`."""
    names = {n.removeprefix("loss.") for b in branches for n in b.curves if n.startswith("loss.")}
    return tuple(sorted(names))


@dataclass(frozen=True)
class Stretch:
    """A metric's curve from step x0 to x1, and whether the current weights descend from it."""

    branch: Branch
    series: Series
    x0: float
    x1: float
    live: bool
    lead: Point | None = None
    """The value at the step that the branch continues from, to which its first point is joined."""


def stretches(branches: Sequence[Branch], name: str) -> Iterator[Stretch]:
    """Yield a metric's stretches of all branches; abandoned ones first, so live ones cover them."""
    ends = live_ends(branches)
    found = [(index, b.curves[name]) for index, b in enumerate(branches) if b.curves.get(name)]
    for index, series in found:
        end = ends.get(index, -math.inf)
        if series.last and series.last[0] > end:
            known = math.isfinite(end)
            lead = None if known else _lead(branches, index, name)
            start = end if known else 0.0
            yield Stretch(branches[index], series, start, math.inf, live=False, lead=lead)
    for index, series in found:
        if index in ends:
            lead = _lead(branches, index, name)
            yield Stretch(branches[index], series, -math.inf, ends[index], live=True, lead=lead)


def _lead(branches: Sequence[Branch], index: int, name: str) -> Point | None:
    """Return the point of a metric at the step that a branch continues from; None without one."""
    branch = branches[index]
    if branch.parent is None:
        return None
    value = value_on(branches, branch.parent, name, branch.start)
    return None if value is None or not math.isfinite(value) else (float(branch.start), value)


def abandoned(branches: Sequence[Branch]) -> Iterator[tuple[int, int, int]]:
    """Yield the branches with abandoned steps, oldest first.

    Each comes as its index, the step from which training continued without the abandoned ones, and
    the last of them.
    """
    ends = live_ends(branches)
    for index, branch in enumerate(branches):
        first = max(branch.start, ends.get(index, -math.inf))
        if branch.last_step > first:
            yield index, int(first), branch.last_step


def live_ends(branches: Sequence[Branch]) -> dict[int, float]:
    """Return index → last step of the branches that the current weights descend from.

    The newest branch is still growing: its last step is infinite.
    """
    return dict(lineage(branches, len(branches) - 1))


def lineage(branches: Sequence[Branch], newest: int) -> Iterator[tuple[int, float]]:
    """Yield the branch of index `newest` and those it descends from, newest first.

    Each comes as its index and the last of its steps that the branch `newest` descends from, which
    for that branch itself is infinite.
    """
    index: int | None = newest
    end = math.inf
    while index is not None and index >= 0:
        yield index, end
        end = min(end, branches[index].start)
        index = branches[index].parent


def value_on(branches: Sequence[Branch], newest: int, name: str, step: float) -> float | None:
    """Return a metric at a step, or at the nearest earlier one that has a value.

    Only steps of the branch of index `newest` and of those it descends from count; None if none of
    them has a value up to that step.
    """
    for index, end in lineage(branches, newest):
        series = branches[index].curves.get(name)
        value = None if series is None else series.at(min(step, end))
        if value is not None:
            return value
    return None
