"""The book of faults: what is injected, what must hold, what others do, and what was measured."""

from __future__ import annotations

import random
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from .stage import Stage


@dataclass(frozen=True)
class Figures:
    """What one fault came to."""

    ours: str
    """The measured figures, as a person reads them."""
    ok: bool
    """The target was met."""
    skipped: bool = False
    """It cannot be injected on this machine; `ours` says why."""


@dataclass(frozen=True)
class Box:
    """What a fault gets to work with."""

    folder: Path
    """Fresh and its own."""
    stage: Stage
    long: bool
    rng: random.Random

    def count(self, short: int, long: int) -> int:
        """How often to inject, by size."""
        return long if self.long else short


@dataclass(frozen=True)
class Fault:
    """One row of the table."""

    id: str
    injection: str
    target: str
    baseline: str
    """What is usual today, with its name."""
    inject: Callable[[Box], Figures]


FAULTS: dict[str, Fault] = {}


def fault(id_: str, injection: str, target: str, baseline: str) -> Callable[..., object]:
    """Enter a function into the book."""

    def enter(inject: Callable[[Box], Figures]) -> Callable[[Box], Figures]:
        assert id_ not in FAULTS, id_
        FAULTS[id_] = Fault(id_, injection, target, baseline, inject)
        return inject

    return enter


@dataclass(frozen=True)
class Row:
    """A fault after it was injected."""

    fault: Fault
    figures: Figures
    seconds: float

    @property
    def mark(self) -> str:
        """The verdict in a word."""
        if self.figures.skipped:
            return "skipped"
        return "ok" if self.figures.ok else "NOT OK"


def play(fault: Fault, box: Box) -> Row:
    """Inject one fault; a broken invariant or an error becomes its figure."""
    started = time.monotonic()
    try:
        figures = fault.inject(box)
    except Exception as error:  # noqa: BLE001 -- a row must not end the table
        traceback.print_exc()
        figures = Figures(f"{type(error).__name__}: {error}".splitlines()[0], ok=False)
    return Row(fault, figures, time.monotonic() - started)


def play_all(ids: list[str], box: Box, folder: Path) -> Iterator[Row]:
    """Inject faults one after the other, each in a folder of its own."""
    for id_ in ids:
        place = folder / id_
        place.mkdir()
        yield play(FAULTS[id_], replace(box, folder=place))


def spread(values: list[float], digits: int = 2) -> str:
    """Median and 99th percentile."""
    ordered = sorted(values)
    p50, p99 = ordered[len(ordered) // 2], ordered[round(0.99 * (len(ordered) - 1))]
    return f"p50 {p50:.{digits}f} / p99 {p99:.{digits}f}"
