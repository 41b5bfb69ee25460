"""What runs really need of a GPU, against the estimate, and how small an 8B gets in lean mode.

    python -m tests.bench.memory [--device cpu] [--only NAME …] [--limit-s S] [--budget-s S]

Every row is a whole run of ours (session, journal, guard, detector) on a model with random weights
in a published shape, in a process of its own; rows named lean or tight are held to a process total
of 6.0 GiB, context included. `--only` takes names of rows or beginnings of them. Rows whose time
counts have the device to themselves, the others share it. Rows named family and full are models of
other architectures and training of all weights, from disk through the real loader:

    python -m tests.bench.memory --only family full --at-once 8 --budget-s 540

Needs a CUDA device; `--device cpu` only tries the script out.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from .children import Child
from .memory_cases import CASES, Case

AT_ONCE = 4
"""Rows that share the device."""
AHEAD = 10
"""Processes that import the training stack while others measure."""


def main() -> None:
    """Measure the rows; processes load the training stack while others measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only", nargs="+", help="names of rows, or beginnings of them")
    parser.add_argument("--limit-s", type=float, default=60.0, help="of a row")
    parser.add_argument("--budget-s", type=float, default=240.0, help="no row begins after it")
    parser.add_argument("--shape", help="of all rows, to try the script out")
    parser.add_argument("--length", type=int, help="of all rows, to try the script out")
    parser.add_argument("--divide", type=int, default=1, help="widths of families, to try it out")
    parser.add_argument("--at-once", type=int, default=AT_ONCE, help="rows that share the device")
    options = parser.parse_args()
    wanted = tuple(options.only or [""])
    queue = Queue([case for case in CASES if case.name.startswith(wanted)], options)
    print(f"{'run':72} {'estimate':>8} {'measured':>8} {'error':>6} {'reserved':>8} {'device':>7} "
          f"{'ms/micro':>8}  notes", flush=True)  # fmt: skip
    rows = queue.measure()
    errors = [row["error"] for row in rows if "error" in row]
    if errors:
        print(f"mean |error| {statistics.mean(errors):.1%}, largest {max(errors):.1%}, "
              f"{len(errors)} runs", flush=True)  # fmt: skip
    print(by_shape(rows))


def by_shape(rows: Sequence[dict[str, Any]]) -> str:
    """Return a table of planned and measured GiB, with a line for each shape and its rows."""
    lines: dict[str, list[str]] = {}
    for row in rows:
        if "failed" in row:
            text = "failed"
        else:
            figures = f"{row['estimate']:.3f} / {row['measured']:.3f}"
            text = f"{figures} {row['signed']:+.1%}" if row["estimate"] else figures
        lines.setdefault(row["shape"], []).append(f"{row['name']} {text}")
    return "\n".join(f"{shape:16} {' | '.join(texts)}" for shape, texts in lines.items())


class Queue:
    """Rows in order: those alone one after another, the others some at once."""

    def __init__(self, cases: Sequence[Case], options: argparse.Namespace) -> None:
        self._rows = [(case, child_of(case, options)) for case in cases]
        self._options = options
        self._ends_s = time.monotonic() + options.budget_s

    def measure(self) -> list[dict[str, Any]]:
        """All rows that begin in time."""
        rows: list[dict[str, Any]] = []
        while self._rows:
            count = next((n for n, (case, _) in enumerate(self._rows) if case.alone), None)
            group = self._rows[: 1 if count == 0 else count]
            for _, child in self._rows[: len(group) + AHEAD]:
                child.start()
            with ThreadPoolExecutor(self._options.at_once) as pool:
                rows += pool.map(self._one, *zip(*group, strict=True))
            self._rows = self._rows[len(group) :]
        return rows

    def _one(self, case: Case, child: Child) -> dict[str, Any]:
        if time.monotonic() > self._ends_s:
            child.end()
            row: dict[str, Any] = {"failed": "left out: the time is up"}
        else:
            row = child.measure(self._options.limit_s)
        show(case.title(), row)
        return row | {"name": case.name, "shape": case.shape}


def child_of(case: Case, options: argparse.Namespace) -> Child:
    """The process of a row."""
    segments = {"PYTORCH_ALLOC_CONF": f"expandable_segments:{case.segments}"}
    shape, length = options.shape or case.shape, options.length or case.length
    shape += f"/{options.divide}" if options.divide > 1 else ""
    return Child(_measured, case, options.device, shape, length, environment=segments)


def show(title: str, row: dict[str, Any]) -> None:
    """Print one row of the table."""
    if "failed" in row:
        print(f"{title:72} {row['failed']}; {row.get('took', '')}", flush=True)
        return
    print(f"{title:72} {row['estimate']:8.3f} {row['measured']:8.3f} {row['signed']:+6.1%} "
          f"{row['reserved']:8.3f} {row['device']:7.3f} {row['ms']:8.1f}  {row['notes']}; "
          f"{row['took']}", flush=True)  # fmt: skip


def _measured(case: Case, device: str, shape: str, length: int) -> dict[str, Any]:
    from .memory_row import measured

    with tempfile.TemporaryDirectory() as folder:
        return measured(case, device, shape, length, Path(folder))


if __name__ == "__main__":
    main()
