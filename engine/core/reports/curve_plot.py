"""A small plot of loss and gradient norm around an alert, as lines of text."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

WIDTH = 56
"""Columns of the curves; with the labels a line is at most 72 wide."""
LOSS_ROWS, NORM_ROWS = 5, 3
LABEL = 11
"""Columns of a label beside the curves."""
WIDEST_STEP = 4
"""Most columns of one step."""
LOG_FROM = 20.0
"""Highest over lowest value from which the scale is logarithmic."""
_BARS = " ▁▂▃▄▅▆▇█"
_MISSING, _NONFINITE = " ", "x"


class CurvePoint(msgspec.Struct, frozen=True):
    """Loss and gradient norm of one step."""

    step: int
    loss: float
    grad_norm: float | None = None


def curve_plot(points: Sequence[CurvePoint], at_step: int) -> list[str]:
    """Return the lines of a plot; empty with fewer than two steps.

    Args:
        points: steps in order; of too many, those nearest before and after the alert are drawn.
        at_step: step of the alert, which gets a mark below.
    """
    shown = _nearest(points, at_step)
    if len(shown) < 2:
        return []
    wide = min(WIDEST_STEP, WIDTH // len(shown))
    lines = _curve("loss", [point.loss for point in shown], LOSS_ROWS, wide)
    norms = [point.grad_norm for point in shown]
    if any(norm is not None for norm in norms):
        lines += _curve("norm", norms, NORM_ROWS, wide)
    return [*lines, *_axis([point.step for point in shown], at_step, wide)]


def _nearest(points: Sequence[CurvePoint], at_step: int) -> list[CurvePoint]:
    before = [point for point in points if point.step <= at_step]
    after = [point for point in points if point.step > at_step]
    room = max(WIDTH // 2, WIDTH - len(before))
    after = after[:room]
    return [*before[-(WIDTH - len(after)) :], *after]


def _curve(name: str, values: Sequence[float | None], rows: int, wide: int) -> list[str]:
    """Return the rows of one curve, each value as a bar, with its highest and lowest value.

    Without a finite value it is a single row of marks.
    """
    known = [value for value in values if value is not None and math.isfinite(value)]
    if not known:
        return [f"{name:>{LABEL}} ┤" + "".join(_sign(value) * wide for value in values)]
    low, high = min(known), max(known)
    logarithmic = low > 0 and high / low > LOG_FROM
    heights = [_height(value, low, high, rows, logarithmic=logarithmic) for value in values]
    labels = [f"{name} {_short(high)}", *[""] * (rows - 2), _short(low)]
    if logarithmic:
        labels[1] = "(log)"
    return [
        f"{label:>{LABEL}} {'┤' if label else '│'}"
        + "".join(_cell(height, rows - 1 - row, rows) * wide for height in heights).rstrip()
        for row, label in enumerate(labels)
    ]


def _height(
    value: float | None, low: float, high: float, rows: int, *, logarithmic: bool
) -> float | None:
    """Return the height of a bar in eighths of a row.

    It is infinite for a value that is not finite, and None for a value that is None.
    """
    if value is None:
        return None
    if not math.isfinite(value):
        return math.inf
    if logarithmic:
        value, low, high = math.log(value), math.log(low), math.log(high)
    share = (value - low) / (high - low) if high > low else 0.0
    return max(1.0, round(share * 8 * rows))


def _cell(height: float | None, row: int, rows: int) -> str:
    """Return the character of a bar in a row, counted from below."""
    if height is None:
        return _MISSING
    if math.isinf(height):
        return _NONFINITE if row == rows - 1 else _MISSING
    return _BARS[int(min(max(height - 8 * row, 0), 8))]


def _sign(value: float | None) -> str:
    return _MISSING if value is None else _NONFINITE


def _axis(steps: Sequence[int], at_step: int, wide: int) -> list[str]:
    """Return the line below the curves: a mark with the step of the alert, and the first step.

    If the alert's step is not among `steps`, the line says which steps they are.
    """
    if at_step not in steps:
        return [f"{'step':>{LABEL}}  {steps[0]} to {steps[-1]}"]
    place = steps.index(at_step) * wide
    mark = f"▲ {at_step}"
    if place + len(mark) > WIDTH:
        mark, place = f"{at_step} ▲", place - len(f"{at_step} ")
    first = str(steps[0]) if len(str(steps[0])) < place - 1 else ""
    return [f"{'step':>{LABEL}}  " + f"{first:<{max(place, 0)}}" + mark]


def _short(value: float) -> str:
    return f"{value:.3g}"
