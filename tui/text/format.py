"""Formats of numbers, sizes, durations and times in the app and in the output of commands."""

from __future__ import annotations

import math
import time

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB")
_DECIMAL = ("", "k", "M", "G", "T")
_MEMORY_TERMS = {
    "base": "base weights",
    "non_quantized": "embeddings, head, norms",
    "adapters": "trained weights",
}


def number(value: float | None) -> str:
    """Format a value: `1.412`, `12.31`, `1,240`, `0.0612`, `3.10e-5`, `NaN`, `∞`; None is `–`.

    From 1 up to 10,000 it has four digits, from 0.001 up to 0.1 four decimals.
    """
    if value is None:
        return "–"
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    size = abs(value)
    if size == 0:
        return "0.000"
    if size < 0.001 or size >= 1e6:
        return scientific(value)
    return f"{value:,.{_decimals(size)}f}"


def _decimals(size: float) -> int:
    if size < 0.1:
        return 4
    return max(0, 3 - max(0, math.floor(math.log10(size))))


def scientific(value: float, digits: int = 2) -> str:
    """Format a number as `1.00e-4`, with `digits` decimals and an unpadded exponent.

    NaN and infinity are formatted as by `number`.
    """
    if not math.isfinite(value):
        return number(value)
    mantissa, _, exponent = f"{value:.{digits}e}".partition("e")
    return f"{mantissa}e{int(exponent)}"


def learning_rate(value: float | None) -> str:
    """Format a learning rate as `1.00e-4`; 0 is `0` and None is `–`."""
    return "–" if value is None else scientific(value) if value else "0"


def factor(value: float) -> str:
    """Format a multiplier with at most four significant digits, such as `0.5`."""
    return f"{value:.4g}"


def count(value: float) -> str:
    """Format a number as `1,240`, rounded to a whole one."""
    return f"{value:,.0f}"


def short_count(value: float) -> str:
    """Format a number as `134.5M`, with one decimal and an SI suffix; below 1,000 as `840`.

    NaN and infinity are `NaN`, `∞` and `-∞`.
    """
    if not math.isfinite(value):
        return number(value)
    if abs(value) < 1000:
        return f"{value:.0f}"
    power = min(len(_DECIMAL) - 1, int(math.log10(abs(value)) // 3))
    return f"{value / 1000**power:.1f}{_DECIMAL[power]}"


def percent(share: float, digits: int = 1) -> str:
    """Format a share of 1 as `24.8 %`, with `digits` decimals."""
    return f"{100 * share:.{digits}f} %"


def size(value: float | None) -> str:
    """Format bytes as `4.9 GiB`; None is `–`."""
    if value is None:
        return "–"
    unit = 0
    while abs(value) >= 1024 and unit < len(_BINARY) - 1:
        value /= 1024
        unit += 1
    return f"{value:.0f} {_BINARY[unit]}" if unit < 2 else f"{value:.1f} {_BINARY[unit]}"


def size_of(used: float, total: float) -> str:
    """Format used and total bytes as `4.9 / 6.0 GiB`, both in the unit of the total."""
    whole = size(total)
    unit = _BINARY.index(whole.split()[1])
    return f"{used / 1024**unit:.1f} / {whole}"


def duration(seconds: float | None) -> str:
    """Format seconds in one or two units: `74 ms`, `0.4 s`, `12 s`, `3 m 20 s`, `2 d 3 h`.

    None and values that are not finite are `–`, and negative ones count as 0.
    """
    if seconds is None or not math.isfinite(seconds):
        return "–"
    seconds = max(0.0, seconds)
    if 0 < seconds < 0.0995:
        return f"{max(1, round(1000 * seconds))} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    for big, small, limit in ((60, 1, 3600), (3600, 60, 86400), (86400, 3600, math.inf)):
        if whole < limit:
            names = {60: ("m", "s"), 3600: ("h", "m"), 86400: ("d", "h")}[big]
            return f"{whole // big} {names[0]} {whole % big // small} {names[1]}"
    return "–"


def age(seconds: float | None) -> str:
    """Format an age in seconds in its largest unit only: `0.2 s`, `3 m`, `5 h`; None is `–`."""
    text = duration(0.0 if seconds is not None and seconds < 0.05 else seconds)
    if text.endswith("ms"):
        return "0.1 s"  # an age that changes all the time keeps its unit
    return text if text == "–" else " ".join(text.split()[:2])


def clock(time_s: float) -> str:
    """Format Unix seconds as local time of day, `12:04:33`; an invalid time is shown as `–`."""
    try:
        return time.strftime("%H:%M:%S", time.localtime(time_s))
    except (ValueError, OverflowError, OSError):
        return "–"


def tick(value: float, span: float) -> str:
    """Format a value for the label of an axis, with the decimals that the span of the axis needs.

    Values of 100,000 and more, and small ones on a narrow axis, are written as `1.5e-4`.
    """
    if value == 0:
        return "0"
    if abs(value) >= 1e5 or (abs(value) < 1e-2 and span < 1e-2):
        return scientific(value, 1)
    decimals = min(4, max(0, 1 - math.floor(math.log10(span)))) if span > 0 else 2
    return f"{value:.{decimals}f}"


def plural(amount: float, noun: str) -> str:
    """Format an amount with its noun: `1 step`, `412 steps`."""
    return f"{count(amount)} {noun}" + ("" if amount == 1 else "s")


def clip_to(text: str, width: int) -> str:
    """Return a text of at most `width` characters; a longer one is cut and ends with `…`.

    For a width below 1, a text is `…` alone.
    """
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"


def clip_middle(text: str, width: int) -> str:
    """Return a text of at most `width` characters; a longer one has `…` in its middle."""
    if len(text) <= width:
        return text
    tail = max(0, (width - 1) // 2)
    return clip_to(text, max(1, width - tail)) + text[len(text) - tail :]


def memory_term(name: str) -> str:
    """Return the shown name of a term of the memory estimate: `base` is `base weights`.

    A term that needs no other name keeps its own.
    """
    return _MEMORY_TERMS.get(name, name)
