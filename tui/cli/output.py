"""Numbers, times and runs as the command line prints them."""

from __future__ import annotations

import math
import shutil
import sys
import time

from fttui.engine.run.run_index import RunSummary

from ..text.format import clip_to

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


def age(seconds: float) -> str:
    """A span of time in its two largest units, such as `1 h 12 m`."""
    left = max(0, round(seconds))
    for index, (size, name) in enumerate(_UNITS):
        if left >= size:
            rest = left % size
            finer, finer_name = (_UNITS[index + 1]) if index + 1 < len(_UNITS) else (1, "s")
            return f"{left // size} {name} {rest // finer} {finer_name}"
    return f"{left} s"


def print_runs(runs: list[RunSummary], *, numbered: bool = False) -> None:
    """A table of runs, cut to the width of the terminal if there is one."""
    now = time.time()
    width = max((len(run.id) for run in runs), default=3)
    gap = " " * 4 if numbered else ""
    print(f"{gap}{'RUN':<{width}}  {'STATE':<12}  {'STEP':>13}  {'LOSS':>8}  LAST NEWS")
    room = shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize
    for index, run in enumerate(runs, 1):
        place = f"{index:>2}  " if numbered else ""
        print(clip_to(f"{place}{_row(run, width, now)}", room))


def _row(run: RunSummary, width: int, now: float) -> str:
    step = f"{run.step:,}/{run.total_steps:,}" if run.total_steps else f"{run.step:,}"
    last = age(now - run.last_time) + " ago" if run.last_time else "none yet"
    error = f"  {run.error.splitlines()[0]}" if run.error else ""
    loss = number(run.loss)
    return f"{run.id:<{width}}  {run.state.value:<12}  {step:>13}  {loss:>8}  {last}{error}"
