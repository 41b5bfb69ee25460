"""Ticks of the x and y axes at round values, and the labels of the x axis."""

from __future__ import annotations

import math

from ..text import format as fmt
from ..view_model.axis import Axis


def ticks(low: float, high: float, most: int) -> list[float]:
    """Return equally spaced round values within the limits, at most `most` + 1 of them.

    There are none if `most` is below 1 or `high` is not above `low`.
    """
    if most < 1 or not high > low:
        return []
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(k * step, 12) for k in range(first, math.floor(high / step + 1e-9) + 1)]


def log_ticks(low: float, high: float, most: int) -> list[float]:
    """Return the log10 of round values such as 1, 2, 5, 10, between limits that are log10 too.

    There are at most `most` of them, none if more powers of ten lie between the limits.
    """
    found: list[float] = []
    for digits in ((1,), (1, 2, 5), (1, 2, 3, 4, 5, 6, 7, 8, 9)):
        powers = range(math.floor(low), math.ceil(high) + 1)
        marks = [power + math.log10(digit) for power in powers for digit in digits]
        inside = [mark for mark in marks if low <= mark <= high]
        if len(inside) > most:
            break
        found = inside
    return found


_SPANS = (
    1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400,
)  # fmt: skip
"""Distances of ticks on the time axis, in seconds."""
_MORE = 3
"""How many numbers of ticks, from `most` upwards, are tried to get more than one tick."""


def axis_ticks(axis: Axis, low: float, high: float, most: int) -> list[float]:
    """Return about `most` round places on the x axis; more if there would be fewer than two."""
    most = max(1, most)
    tries = (_x_ticks(axis, low, high, amount) for amount in range(most, most + _MORE))
    return next((found for found in tries if len(found) > 1), _x_ticks(axis, low, high, most))


def _x_ticks(axis: Axis, low: float, high: float, most: int) -> list[float]:
    if axis != "time":
        whole = axis == "step"
        return [tick for tick in ticks(low, high, most) if not whole or tick.is_integer()]
    step = next((s for s in _SPANS if (high - low) / s <= most), 0)
    step = step or 86400 * math.ceil((high - low) / 86400 / most)
    return [float(k * step) for k in range(math.ceil(low / step), math.floor(high / step) + 1)]


def axis_label(axis: Axis, value: float) -> str:
    """Return the label of a place on the x axis: `1,200`, `1 h 30 m`, `2.4M` or `1.25`.

    On the time axis the value is in seconds since the start of the run.
    """
    match axis:
        case "time":
            big, _, rest = fmt.duration(value).partition(" 0 ")
            return (big if rest in {"s", "m", "h"} else fmt.duration(value)) if value else "0"
        case "tokens":
            return fmt.short_count(value)
        case "epoch":
            return f"{value:.4g}"
        case _:
            return fmt.count(value)
