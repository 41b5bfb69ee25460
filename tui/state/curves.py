"""The curves of a run: one branch per stretch of history, parted at rollbacks and resumes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from fttui.engine.protocol.events import EvalFinished, Record, StepFinished

from .series import Ema, Series

SMOOTHINGS = (0.98, 0.9, 0.995)
"""EMA factors kept for the loss, the first one shown first."""
EVAL = "eval."


def smoothed(beta: float) -> str:
    """Name of the loss curve smoothed by a factor."""
    return f"loss~{beta:g}"


@dataclass(frozen=True)
class Branch:
    """A stretch of training that nothing was thrown away from while it lasted."""

    timeline: int = 1
    start: int = 0
    """Step it sets out from."""
    parent: int | None = None
    """Index of the branch it parted from."""
    curves: Mapping[str, Series] = field(default_factory=dict)
    averages: tuple[Ema, ...] = tuple(Ema(beta) for beta in SMOOTHINGS)

    def extend(self, records: Sequence[Record], steps: Sequence[StepFinished]) -> Branch:
        """The branch with more steps; `steps` are the events of `records`."""
        xs = [float(record.step) for record in records]
        grown = dict(self.curves)
        for name, column in _columns(records, steps):
            points = [(x, y) for x, y in zip(xs, column, strict=True) if y is not None]
            series = grown.get(name, _EMPTY)
            grown[name] = series.extend([x for x, _ in points], [y for _, y in points])
        averages = tuple(
            _smooth(grown, average, xs, [s.loss for s in steps]) for average in self.averages
        )
        return replace(self, curves=grown, averages=averages)

    def evaluated(self, step: int, event: EvalFinished) -> Branch:
        """The branch with an evaluation."""
        grown = dict(self.curves)
        for name, value in event.metrics.items():
            grown[EVAL + name] = grown.get(EVAL + name, _EMPTY).append(step, value)
        return replace(self, curves=grown)

    @property
    def last_step(self) -> int:
        """The newest step on it."""
        loss = self.curves.get("loss")
        return int(loss.last[0]) if loss and loss.last else self.start

    def fork(self, timeline: int, step: int, own_index: int) -> Branch:
        """A new branch that goes on from a step of this one."""
        values = (
            series.at(step) if (series := self.curves.get(smoothed(a.beta))) else None
            for a in self.averages
        )
        seeded = tuple(
            Ema(a.beta) if value is None or not math.isfinite(value) else Ema(a.beta, value, 1.0)
            for a, value in zip(self.averages, values, strict=True)
        )
        return Branch(timeline=timeline, start=step, parent=own_index, averages=seeded)


_EMPTY = Series()
_PLAIN = (
    "loss", "grad_norm", "clip", "lr", "lr_schedule", "lr_scale", "tokens_per_s", "step_s",
    "mem_allocated_bytes", "mem_reserved_bytes", "rss_bytes", "gpu_util", "gpu_temp_c",
    "gpu_power_w", "skew_s",
)  # fmt: skip

Column = tuple[str, Iterable[float | None]]


def _columns(records: Sequence[Record], steps: Sequence[StepFinished]) -> Iterator[Column]:
    for name in _PLAIN:
        values = [getattr(step, name) for step in steps]
        if any(value is not None for value in values):
            yield name, values
    yield "time", [record.time for record in records]
    yield "data_share", [s.data_s / s.step_s if s.step_s > 0 else None for s in steps]
    for name in sorted({key for step in steps for key in step.parts}):
        yield f"loss.{name}", [step.parts.get(name) for step in steps]
    for name in sorted({key for step in steps for key in step.extra}):
        yield name, [step.extra.get(name) for step in steps]


def _smooth(
    grown: dict[str, Series], average: Ema, xs: Sequence[float], losses: Sequence[float]
) -> Ema:
    values = []
    for loss in losses:
        average = average.push(loss)
        values.append(average.value)
    known = [(x, y) for x, y in zip(xs, values, strict=True) if math.isfinite(y)]
    name = smoothed(average.beta)
    series = grown.get(name, _EMPTY)
    grown[name] = series.extend([x for x, _ in known], [y for _, y in known])
    return average


def parts_of(branches: Sequence[Branch]) -> tuple[str, ...]:
    """Names of the loss parts, such as `ce`."""
    names = {n.removeprefix("loss.") for b in branches for n in b.curves if n.startswith("loss.")}
    return tuple(sorted(names))


@dataclass(frozen=True)
class Stretch:
    """A part of a series, and whether it leads to the present state of the weights."""

    series: Series
    x0: float
    x1: float
    live: bool


def stretches(branches: Sequence[Branch], name: str) -> Iterator[Stretch]:
    """A metric over all branches: abandoned parts first, so that live ones are drawn over them."""
    ends = live_ends(branches)
    found = [(index, b.curves[name]) for index, b in enumerate(branches) if b.curves.get(name)]
    for index, series in found:
        end = ends.get(index, -math.inf)
        if series.last and series.last[0] > end:
            yield Stretch(series, end if math.isfinite(end) else 0.0, math.inf, live=False)
    for index, series in found:
        if index in ends:
            yield Stretch(series, -math.inf, ends[index], live=True)


def live_ends(branches: Sequence[Branch]) -> dict[int, float]:
    """Branches the present state descends from → the last step of each that still counts."""
    ends: dict[int, float] = {}
    index: int | None = len(branches) - 1
    end = math.inf
    while index is not None and index >= 0:
        ends[index] = end
        end = min(end, branches[index].start)
        index = branches[index].parent
    return ends
