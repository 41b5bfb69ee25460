"""The panels of the dashboard and of single metrics, and which metrics get one.

A panel holds the curves, title and axis of one plot.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fttui.engine.protocol.benchmarks.result import BENCH
from fttui.engine.protocol.step_memory import memory_in_use

from ..text import format as fmt
from ..text.throughput import throughput, throughput_metric
from ..view_model.app_state import AppState
from ..view_model.branches import (
    CLIPPED,
    EMPTIEST,
    EVAL,
    FULLEST,
    TOKENS,
    USAGE,
    parts_of,
    smoothed,
)
from ..view_model.run_view import RunView
from .layers import Curve

TREND_STEPS = 100
_GIB = float(2**30)


@dataclass(frozen=True)
class Entry:
    """A part of a plot's title. With a look it is the legend of the curve in that look."""

    text: str
    look: str = ""
    """The style of the curve that the entry is the legend of, such as `ema`; empty for none."""
    brief: str | None = None
    """The text where the title has little room; None leaves it as it is, empty leaves it out."""


@dataclass(frozen=True)
class Panel:
    """A plot, described by pure functions of the app's state."""

    id: str
    name: str
    curves: Callable[[AppState], Sequence[Curve]]
    title: Callable[[AppState], Sequence[Entry]]
    """Returns the parts of the title after the name."""
    subtitle: Callable[[AppState], str] = lambda state: ""
    label: Callable[[float], str] | None = None
    """Formats the labels of the y axis; None formats plain numbers."""
    unit: float = 1.0
    """Labels of the y axis are round multiples of this."""
    floor: float | None = None
    can_log: bool = False
    limits: Callable[[AppState], Sequence[float]] = lambda state: ()
    """Returns the values of horizontal lines, such as the device's memory."""
    empty: str = "no values yet"
    """Text instead of the plot if there are no values."""
    heading: Callable[[AppState], str] | None = None
    """Returns the name, if it depends on the state."""

    def name_in(self, state: AppState) -> str:
        """Return the name of the plot."""
        return self.heading(state) if self.heading else self.name

    def entries(self, state: AppState) -> list[Entry]:
        """Return the parts of the title after the name; the step of a cursor is the first of them.

        Parts without a text are left out.
        """
        step = state.plot.cursor
        parts = [part for part in self.title(state) if part.text]
        return parts if step is None else [Entry(f"step {step:,}"), *parts]


def value_at(run: RunView, name: str, step: int | None) -> float | None:
    """Return a metric at a step of the live history, or its newest value if the step is None.

    The live history is all steps that the current weights descend from. None if the metric has no
    value up to that step.
    """
    return run.live_value(name, math.inf if step is None else step)


def _shown_value(
    state: AppState, metric: str, look: str, shown: Callable[[float | None], str], name: str = ""
) -> Entry:
    """Return the legend of a metric with its value at the cursor, or the newest without a cursor.

    The text of the legend is empty if there is no value.

    Args:
        state: the state of the app.
        metric: the name of the curve.
        look: the style of the curve.
        shown: formats the value.
        name: the name of the curve where the plot has several; the first to go without room.
    """
    value = value_at(state.run, metric, state.plot.cursor)
    if value is None:
        return Entry("")
    text = shown(value)
    return Entry(f"{name} {text}".strip(), look, brief=text if name else None)


def loss_curve(state: AppState) -> str:
    """Return the name of the chosen loss curve: the total loss or one of its parts."""
    parts = parts_of(state.run.branches)
    index = state.plot.part % (len(parts) + 1)
    return f"loss.{parts[index - 1]}" if index else "loss"


def _loss_curves(state: AppState) -> Sequence[Curve]:
    name = loss_curve(state)
    curves = [Curve(name, "raw")]
    if name == "loss" and state.plot.beta is not None:
        curves.append(Curve(smoothed(state.plot.beta), "ema", old=False))
    elif name != "loss" or state.plot.beta is None:
        curves = [Curve(name, "live")]
    if name == "loss":
        curves.append(Curve(f"{EVAL}loss", "eval", dots=True))
    return curves


def _loss_title(state: AppState) -> Sequence[Entry]:
    name, beta = loss_curve(state), state.plot.beta
    if name != "loss":
        part = Entry(name.removeprefix("loss."))
        return [part, _shown_value(state, name, "live", fmt.number)]
    parts = [_shown_value(state, name, "live" if beta is None else "raw", fmt.number)]
    last = state.run.last
    if last is not None and last.loss is None:
        parts.append(Entry("not reported by the script"))
    if beta is not None:
        label = f"ema {f'{beta:g}'.removeprefix('0')}"
        parts.append(_shown_value(state, smoothed(beta), "ema", fmt.number, label))
    parts.append(_shown_value(state, f"{EVAL}loss", "eval", fmt.number, "eval"))
    trend = _trend(state.run) if state.plot.cursor is None else ""
    return [*parts, Entry(trend, brief="")]


def _trend(run: RunView) -> str:
    """Return the change of the smoothed loss over the last 100 steps, such as `▾ 0.8 %/100`.

    The text is empty up to step 100 of the branch, and if the loss 100 steps ago was 0 or not
    finite.
    """
    series = run.branch.curves.get(smoothed(0.98))
    if not series or not series.last:
        return ""
    x, now = series.last
    before = series.at(x - TREND_STEPS)
    if before is None or not before or not math.isfinite(before):
        return ""
    change = (now - before) / abs(before)
    return f"{'▾' if change <= 0 else '▴'} {fmt.percent(abs(change))}/{TREND_STEPS}"


def _grad_title(state: AppState) -> Sequence[Entry]:
    run, step = state.run, state.plot.cursor
    parts = [_shown_value(state, "grad_norm", "live", fmt.number)]
    if run.last is None:
        return parts
    if step is not None:
        return [*parts, _shown_value(state, "clip", "clip", fmt.number, "clip")]
    if run.clip is None:
        parts.append(Entry("clip off"))
    else:
        clip = fmt.number(run.clip)
        parts.append(Entry(f"clip {clip}", "clip", brief=clip))
        parts.append(Entry(f"{fmt.percent(run.clipped_share)} clipped", brief=""))
    scale = run.last.extra.get("loss_scale")
    return parts if scale is None else [*parts, Entry(f"loss scale {fmt.count(scale)}", brief="")]


def _lr_title(state: AppState) -> Sequence[Entry]:
    parts = [_shown_value(state, "lr", "live", fmt.learning_rate)]
    schedule, scale = (value_at(state.run, name, state.plot.cursor) for name in _LR_FACTORS)
    if schedule is not None and scale is not None and scale != 1:
        product = f"= {fmt.learning_rate(schedule)} × {fmt.factor(scale)}"
        parts.append(Entry(product, brief=f"×{fmt.factor(scale)}"))
    if schedule == 0 and (state.run.step if state.plot.cursor is None else state.plot.cursor) == 1:
        parts.append(Entry("warm-up starts at 0", brief="warm-up"))
    return parts


_LR_FACTORS = ("lr_schedule", "lr_scale")


def on_gpu(run: RunView) -> bool:
    """Whether the run reports the memory of an accelerator."""
    return run.last is not None and run.last.mem_allocated_bytes is not None


def memory_now(run: RunView) -> tuple[float, float] | None:
    """Return the bytes in use and the total bytes (0 if unknown); None while nothing is known."""
    last = run.last
    if last is None:
        return None
    used = memory_in_use(last)
    return None if used is None else (float(used), float(last.mem_total_bytes or 0))


def _memory_curves(state: AppState) -> Sequence[Curve]:
    if on_gpu(state.run):
        ranks = Curve(FULLEST, "band", to=EMPTIEST, old=False)
        reserved = Curve("mem_reserved_bytes", "kept", filled=True)
        return [reserved, Curve("mem_allocated_bytes", "held", filled=True), ranks]
    return [Curve("rss_bytes", "held", filled=True)]


def _memory_title(state: AppState) -> Sequence[Entry]:
    gpu, now = on_gpu(state.run), memory_now(state.run)
    if now is None:
        return []
    used, total = now
    if state.plot.cursor is not None or not total:
        names = ("mem_reserved_bytes", "kept") if gpu else ("rss_bytes", "held")
        return [_shown_value(state, *names, fmt.size)]
    share = Entry(fmt.percent(used / total, 0), brief="")
    allocated = [_shown_value(state, "mem_allocated_bytes", "held", fmt.size, "allocated")] * gpu
    return [Entry(fmt.size_of(used, total), "kept" if gpu else "held"), share, *allocated]


def machine_line(run: RunView) -> str:
    """Return the GPU's readings as `GPU 97 %  68 °C  91 W`; empty if there are none."""
    last = run.last
    if last is None:
        return ""
    parts = [
        f"GPU {last.gpu_util:.0f} %" if last.gpu_util is not None else "",
        f"{last.gpu_temp_c:.0f} °C" if last.gpu_temp_c is not None else "",
        f"{last.gpu_power_w:.0f} W" if last.gpu_power_w is not None else "",
    ]
    return "  ".join(part for part in parts if part)


def _throughput_title(state: AppState) -> Sequence[Entry]:
    metric = throughput_metric(state.run.last)
    return [_shown_value(state, metric, "live", lambda value: throughput(metric, value or 0.0))]


def _step_line(state: AppState) -> str:
    last = state.run.last
    if last is None or not last.step_s:
        return ""
    return f"step {fmt.duration(last.step_s)}  data {fmt.percent(last.data_s / last.step_s, 0)}"


LOSS = Panel("loss", "loss", _loss_curves, _loss_title, can_log=True)
GRAD_NORM = Panel(
    "grad-norm",
    "grad norm",
    lambda state: [Curve("grad_norm", "live"), Curve("clip", "clip", step=True)],
    _grad_title,
    floor=0.0,
    can_log=True,
)
LEARNING_RATE = Panel(
    "learning-rate",
    "LR",
    lambda state: [Curve("lr", "live", step=True)],
    _lr_title,
    label=lambda value: (
        fmt.scientific(value, 1).replace(".0e", "e") if 0 < abs(value) < 0.1 else f"{value:g}"
    ),
    floor=0.0,
)
MEMORY = Panel(
    "memory",
    "memory",
    _memory_curves,
    _memory_title,
    lambda state: machine_line(state.run),
    heading=lambda state: "VRAM" if on_gpu(state.run) else "memory",
    label=lambda value: f"{value / _GIB:.3g}G" if value else "0",
    unit=_GIB,
    floor=0.0,
    limits=lambda state: [now[1]] if (now := memory_now(state.run)) else [],
)
THROUGHPUT = Panel(
    "throughput",
    "throughput",
    lambda state: [Curve(throughput_metric(state.run.last), "live")],
    _throughput_title,
    _step_line,
    label=fmt.short_count,
    floor=0.0,
)


def panel_for(metric: str) -> Panel:
    """Return the panel of any metric, by the name of its curve."""

    def title(state: AppState) -> Sequence[Entry]:
        value = value_at(state.run, metric, state.plot.cursor)
        return [Entry(fmt.number(value), "eval" if dots else "live")]

    dots = metric.startswith((EVAL, BENCH))
    curve = Curve(metric, "eval" if dots else "live", dots=dots, step=metric in STEPWISE)

    return Panel(
        f"metric-{''.join(c if c.isalnum() else '-' for c in metric)}",
        metric,
        lambda state: [curve],
        title,
        can_log=True,
    )


STEPWISE = frozenset({"lr", "lr_schedule", "lr_scale", "clip"})
"""Metrics that are settings, which keep their value until somebody or the schedule changes it."""
_UNPLOTTED = ("time", "loss~", TOKENS, CLIPPED, USAGE, "rank_")


def metrics_of(run: RunView) -> list[str]:
    """Return the names of all curves that get a plot on the metrics screen, losses first."""
    names = {name for branch in run.branches for name in branch.curves}
    shown = [name for name in names if not name.startswith(_UNPLOTTED)]
    return sorted(shown, key=lambda name: (_rank(name), name))


def _rank(name: str) -> int:
    if name.startswith("loss."):
        return 1
    measured = name.startswith((EVAL, BENCH))
    return 2 if measured else {"loss": 0, "grad_norm": 3, "lr": 4}.get(name, 5)


def chosen_metrics(names: Sequence[str], text: str) -> list[str]:
    """Return the metrics whose name contains any word of the text; all if it has no words."""
    words = text.lower().split()
    return [name for name in names if not words or any(word in name.lower() for word in words)]
