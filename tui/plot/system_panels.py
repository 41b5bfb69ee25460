"""The panels of the system screen, and the memory estimate by term."""

from __future__ import annotations

from collections.abc import Sequence

from ..text import format as fmt
from ..view_model.app_state import AppState
from ..view_model.branches import FASTEST, SLOWEST
from .layers import Curve
from .panels import MEMORY, Entry, Panel, on_gpu, value_at


def _reading(
    id: str, name: str, metric: str, shown: str, empty: str, *, floor: float | None = 0.0
) -> Panel:
    """Return the panel of one reading, with its value at the cursor or the newest in the title.

    Args:
        id: the id of the panel.
        name: the name in the title.
        metric: the name of the curve.
        shown: the format of the value in the title.
        empty: the text instead of the plot if there are no readings.
        floor: a value that the y axis includes.
    """

    def title(state: AppState) -> Sequence[Entry]:
        value = value_at(state.run, metric, state.plot.cursor)
        return [Entry(shown.format(value), "live")] if value is not None else []

    curves = [Curve(metric, "live")]
    return Panel(id, name, lambda state: curves, title, floor=floor, empty=empty)


def _step_title(state: AppState) -> Sequence[Entry]:
    last = state.run.last
    if last is None:
        return []
    parts = [Entry(fmt.duration(value_at(state.run, "step_s", state.plot.cursor)), "live")]
    if last.rank_s and state.plot.cursor is None:
        slow = max(range(len(last.rank_s)), key=last.rank_s.__getitem__)
        behind = f"{fmt.duration(last.skew_s)} behind the fastest"
        parts.append(Entry(f"slowest rank {slow}, {behind}", brief=f"slowest rank {slow}"))
    return parts


def _pcie_title(state: AppState) -> Sequence[Entry]:
    value = value_at(state.run, "pcie_bytes_per_s", state.plot.cursor)
    return [] if value is None else [Entry(f"{fmt.size(value)}/s", "live")]


STEP_TIME = Panel(
    "step-time",
    "step time",
    lambda state: [Curve(SLOWEST, "band", to=FASTEST, old=False), Curve("step_s", "live")],
    _step_title,
    label=lambda value: f"{value:.3g}s",
    floor=0.0,
)
_NO_GPU = "no readings: no GPU, or its driver does not report them"
PCIE = Panel(
    "pcie",
    "PCIe, both directions",
    lambda state: [Curve("pcie_bytes_per_s", "live")],
    _pcie_title,
    label=MEMORY.label,
    unit=MEMORY.unit,
    floor=0.0,
    empty=_NO_GPU,
)
SYSTEM = (
    MEMORY,
    _reading("gpu-util", "GPU utilisation", "gpu_util", "{:.0f} %", _NO_GPU),
    _reading("gpu-power", "power", "gpu_power_w", "{:.0f} W", _NO_GPU),
    _reading("gpu-temp", "temperature", "gpu_temp_c", "{:.0f} °C", _NO_GPU),
    PCIE,
    STEP_TIME,
)


UNMEASURED_HIDDEN = frozenset({"gpu-util", "gpu-power", "gpu-temp", "pcie"})
"""Ids of the panels that are left out once steps have shown that nothing measures them."""


def measured(panel: Panel, state: AppState) -> bool:
    """Whether a panel has values to draw, or may still get some because no step is finished."""
    names = {curve.name for curve in panel.curves(state)}
    known = (branch.curves.get(name) for branch in state.run.branches for name in names)
    return state.run.last is None or any(known)


def memory_plan(state: AppState) -> list[tuple[str, float]]:
    """Return (term, bytes) of the memory estimate, largest first; empty if it is not known.

    It is the engine's estimate, or one made on this machine if the engine reported none.
    """
    planned = state.run.started.planned_bytes if state.run.started else {}
    terms = planned or state.config.planned(gpu=on_gpu(state.run))
    named = [(fmt.memory_term(name), float(size)) for name, size in terms.items()]
    return sorted((term for term in named if term[1] > 0), key=lambda term: -term[1])
