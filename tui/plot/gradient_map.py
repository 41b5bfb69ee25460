"""The gradient norms of all modules as a map of layers and module kinds.

A cell compares the norm with the median of all modules, so that a layer through which no gradient
flows, or too much, stands out from the others.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from fttui.engine.protocol.events import GradientsMeasured

from ..text import format as fmt

LEVELS = 9
"""Number of levels of a cell; the one in the middle is the median."""
SIGNS = "·▁▂▃▄▅▆▇█"
"""The sign of each level, so that levels differ without colour."""
DEAD, EXPLODING = "✗", "▲"
MOST_CELLS = 3
"""Largest width of a cell of the map, in characters."""
_DECADES = 2.0
"""The lowest and the highest level are this many powers of ten away from the median."""
_LAYER = re.compile(r"^(?P<head>.*?)\.?(?P<layer>\d+)\.(?P<kind>.+)$")


@dataclass(frozen=True)
class Cell:
    """A module of the map, or several where there are more layers than columns."""

    sign: str
    level: int
    """From 0, far below the median, to `LEVELS` - 1."""
    fault: str = ""
    """`dead`, `exploding`, or empty."""


@dataclass(frozen=True)
class GradientMap:
    """The cells by kind of module, each row with one cell per column of layers."""

    rows: dict[str, tuple[Cell | None, ...]]
    layers: tuple[int, ...]
    """The first layer of each column."""
    width: int
    """Characters per cell."""
    median_norm: float


def gradient_map(flow: GradientsMeasured, columns: int) -> GradientMap:
    """Return the map of a measurement in at most `columns` characters, without the row names.

    A module without a number in its name is in layer 0 of a row of its own.
    """
    usual = _usual(flow)
    faults = dict.fromkeys(flow.dead, "dead") | dict.fromkeys(flow.exploding, "exploding")
    places: dict[str, dict[int, list[Cell]]] = {}
    layers = sorted({layer for _, layer in map(_place, (m.module for m in flow.modules))})
    per = max(1, math.ceil(len(layers) / max(1, columns)))
    shown = tuple(layers[::per])
    column_of = {layer: index // per for index, layer in enumerate(layers)}
    for module in flow.modules:
        kind, layer = _place(module.module)
        cell = _cell(module.grad_norm / usual, faults.get(module.module, ""))
        places.setdefault(kind, {}).setdefault(column_of[layer], []).append(cell)
    rows = {
        kind: tuple(_worst(found.get(column, ())) for column in range(len(shown)))
        for kind, found in places.items()
    }
    width = max(1, min(MOST_CELLS, columns // max(1, len(shown))))
    return GradientMap(rows, shown, width, usual)


def _usual(flow: GradientsMeasured) -> float:
    norms = [m.grad_norm for m in flow.modules if math.isfinite(m.grad_norm) and m.grad_norm > 0]
    return median(norms) if norms else 1.0


def _place(module: str) -> tuple[str, int]:
    """Return the kind of a module and its layer: `q_proj` and 3 for `layers.3.q_proj`."""
    found = _LAYER.match(module)
    if found is None:
        return module, 0
    head, kind = found["head"], found["kind"]
    return (kind if head in ("", "layers") else f"{head}.{kind}"), int(found["layer"])


def _cell(ratio: float, fault: str) -> Cell:
    half = (LEVELS - 1) / 2
    if ratio > 0 and math.isfinite(ratio):
        level = round(min(2 * half, max(0.0, half + half / _DECADES * math.log10(ratio))))
    else:
        level = 0 if ratio == 0 else LEVELS - 1
    sign = {"dead": DEAD, "exploding": EXPLODING}.get(fault, SIGNS[level])
    return Cell(sign, level, fault)


def _worst(cells: Iterable[Cell]) -> Cell | None:
    """Return the cell that is farthest from the median, a fault before any other.

    None without cells.
    """
    middle = (LEVELS - 1) / 2

    return max(cells, key=lambda c: (bool(c.fault), abs(c.level - middle)), default=None)


def faults_named(flow: GradientsMeasured) -> list[tuple[str, list[str]]]:
    """Return `dead` and `exploding` with their modules, worst first: `layers.0.v_proj ×42`."""
    usual = _usual(flow)
    norms = {m.module: m.grad_norm for m in flow.modules}

    def named(names: Sequence[str], worst_first: bool) -> list[str]:
        ordered = sorted(names, key=lambda name: norms.get(name, 0.0), reverse=worst_first)
        return [f"{name} {_times(norms.get(name, 0.0) / usual)}" for name in ordered]

    return [("exploding", named(flow.exploding, True)), ("dead", named(flow.dead, False))]


def _times(ratio: float) -> str:
    if not math.isfinite(ratio):
        return "not finite"
    return f"×{fmt.count(ratio)}" if ratio >= 10 else f"×{ratio:.2g}"
