"""What shared products bring to adapted linears that have the same input, in fast mode.

    python -m tests.bench.siblings [--cases 1b:512 8b:2048] [--batch 8] [--repeat 2]

Every row is a whole run of ours in a process of its own (`tests.bench.speed` says how it is
measured), without dropout, with activations kept, `--batch` sequences at once:

    apart+       every adapted linear by itself
    together+    one product for the A matrices of queries, keys and values, and of gate and up

The rows alternate, so that `--repeat` shows the noise; the ratio is that of the throughput to the
first row, which is `apart+`. The first losses are in the notes; they are equal to rounding. The
column ms/micro is the time per sequence.

Needs a CUDA device; `--device cpu --cases tiny:64 --batch 1` tries the script out.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from .speed import ACCUMULATE, Case, measure, measured, ours, write_models

WHAT = ("apart+", "together+")


def main() -> None:
    """Measure both ways of all cases in turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", nargs="+", default=["1b:512", "8b:2048"])
    parser.add_argument("--batch", type=int, default=8, choices=(1, 2, 4, 8))
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20, help="measured ones, after two")
    parser.add_argument("--limit-s", type=float, default=90.0, help="of a row")
    parser.add_argument("--budget-s", type=float, default=480.0, help="no row begins after it")
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    places = [place.split(":") for place in options.cases]
    sizes = [f"train.batch={options.batch}", f"train.accumulate={ACCUMULATE // options.batch}"]
    sets = ("adapter.dropout=0", *sizes)
    with tempfile.TemporaryDirectory() as folder:
        models = write_models({shape for shape, _ in places}, Path(folder), options.device)
        cases = [Case(shape, int(length), what, options.steps, options.device, sets,
                      models.get(shape))
                 for shape, length in places for what in WHAT * options.repeat]  # fmt: skip
        measure(cases, options.limit_s, options.budget_s, _measured)


def _measured(case: Case) -> dict[str, Any]:
    from fttui.engine.train.cuda_graphs import fusion

    if case.what.startswith("apart"):
        vars(fusion)["siblings_in"] = lambda model: {}
    return measured(case, ours)


if __name__ == "__main__":
    main()
