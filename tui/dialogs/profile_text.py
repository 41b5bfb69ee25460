"""A profile as text, for the app, `fttui profile` and headless runs alike."""

from __future__ import annotations

from fttui.engine.protocol.events import StepsProfiled

from ..text import format as fmt

BAR = 24
"""Default length, in cells, of the bar of a part that takes the whole step."""
_LABELS = {"judge": "check"}
"""Labels of parts of a step that are clearer than their names in the journal."""


def profile_lines(found: StepsProfiled, *, bar_cells: int = BAR) -> list[str]:
    """Return the profile's lines: the parts of a step, the device's work, and advice.

    Args:
        found: the profile.
        bar_cells: the length of the bar of a part that takes the whole step; 0 draws no bars, as
            for a screen reader.
    """
    return [
        f"{_time(found.step_s)} per step, over {fmt.plural(found.steps, 'step')}",
        *_parts(found, bar_cells),
        *_device(found),
        *(f"→ {text}" for text in found.advice),
    ]


def _parts(found: StepsProfiled, bar_cells: int) -> list[str]:
    rows = []
    for part in found.parts:
        share = part.host_s / found.step_s if found.step_s else 0.0
        device = "" if part.device_s is None else f"   device {_time(part.device_s)}"
        drawn = f" {'█' * round(bar_cells * share):<{bar_cells}}" if bar_cells else ""
        label = _LABELS.get(part.name, part.name)
        rows.append(f"{label:<9}{100 * share:>4.0f} %{drawn} {_time(part.host_s):>8}{device}")
    return rows


def _time(seconds: float) -> str:
    """Format the seconds of a part of a step; below one second as milliseconds with a decimal."""
    return f"{seconds * 1e3:.1f} ms" if seconds < 0.9995 else fmt.duration(seconds)


def _device(found: StepsProfiled) -> list[str]:
    rows = []
    if found.idle is not None:
        rows.append(
            f"device idle {fmt.percent(found.idle, 0)}, {found.launches:,.0f} kernels per step"
        )
    if found.mfu is not None and found.peak_flops_per_s:
        peak = found.peak_flops_per_s
        rate = f"{peak / 1e12:,.0f} TFLOP/s" if peak >= 1e13 else f"{peak / 1e9:,.0f} GFLOP/s"
        rows.append(
            f"MFU {fmt.percent(found.mfu)} of the {rate} that a large matrix product reaches"
        )
    busy = sum(found.kinds.values())
    if busy:
        shares = (
            f"{kind} {fmt.percent(seconds / busy, 0)}" for kind, seconds in found.kinds.items()
        )
        rows.append("device time: " + ", ".join(shares))
    return rows
