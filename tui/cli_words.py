"""Numbers and times as the command line prints them."""

from __future__ import annotations

import math

_UNITS = ((86400, "d"), (3600, "h"), (60, "m"))


def number(value: float | None, digits: int = 4) -> str:
    """A measured value; NaN and infinities as such, a dash for none."""
    if value is None:
        return "-"
    return f"{value:.{digits}g}" if math.isfinite(value) else str(value)


def rate(value: float) -> str:
    """A learning rate, such as `1.50e-04`."""
    return f"{value:.2e}"


def gibibytes(size_bytes: float) -> str:
    """Memory, such as `4.9 GiB`."""
    return (
        f"{size_bytes / 2**30:.1f} GiB" if size_bytes >= 2**29 else f"{size_bytes / 2**20:.0f} MiB"
    )


def change(old: str, new: str) -> str:
    """What a command changed, in brackets; nothing when it has no values to tell."""
    told = " → ".join(value for value in (old, new) if value)
    return f" ({told})" if told else ""


def age(seconds: float) -> str:
    """A span of time in its two largest units, such as `1 h 12 m`."""
    left = max(0, round(seconds))
    for index, (size, name) in enumerate(_UNITS):
        if left >= size:
            rest = left % size
            finer, finer_name = (_UNITS[index + 1]) if index + 1 < len(_UNITS) else (1, "s")
            return f"{left // size} {name} {rest // finer} {finer_name}"
    return f"{left} s"
