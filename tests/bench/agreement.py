"""What agreement costs a step: started early and read late, against asked and waited for.

    python -m tests.bench.agreement [--ranks 1 2 4] [--step-ms 500] [--steps 40]

No GPU needed. Each rank sleeps for the step, as it does while a device computes; both ways run in
turns in the same processes. Prints µs on the training thread per step.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from fttui.engine.train.distributed.agreement import Agreement
from fttui.engine.train.distributed.place import RankPlace
from fttui.engine.train.distributed.rank_agreement import agreement_of
from tests.support.ranks import in_ranks

NEWS = [7, 0]
NUMBERS = [1.0] * 8


def early(agreement: Agreement, sleep: Callable[[], None]) -> float:
    """The way of the step loop: two vectors on their way while the step computes."""
    started = time.perf_counter()
    news, rows = agreement.start_max(NEWS), agreement.start_rows(NUMBERS)
    spent = time.perf_counter() - started
    sleep()
    started = time.perf_counter()
    news.read()
    rows.read()
    return spent + time.perf_counter() - started


def late(agreement: Agreement, sleep: Callable[[], None]) -> float:
    """The plain way: ask at the end of the step, wait for the answer."""
    sleep()
    started = time.perf_counter()
    agreement.max(NEWS)
    agreement.rows(NUMBERS)
    return time.perf_counter() - started


def measure(place: RankPlace, step_s: float, steps: int, out: Path) -> None:
    """Both ways in turns on one rank; rank 0 writes the medians down, in µs."""
    agreement = agreement_of(place.rank, place.world_size)
    spent: dict[str, list[float]] = {"early": [], "late": []}
    for _ in range(steps):
        for name, way in (("early", early), ("late", late)):
            spent[name].append(1e6 * way(agreement, lambda: time.sleep(step_s)))
    if place.rank == 0:
        out.write_text(json.dumps({name: statistics.median(s) for name, s in spent.items()}))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--step-ms", type=float, default=500.0)
    parser.add_argument("--steps", type=int, default=40)
    options = parser.parse_args()
    print("ranks   early µs   late µs   early / late   early, % of a step")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "medians.json"
        for ranks in options.ranks:
            assert not any(in_ranks(ranks, measure, options.step_ms / 1e3, options.steps, out))
            found = json.loads(out.read_text())
            share = found["early"] / (1e3 * options.step_ms) * 100
            ratio = found["early"] / found["late"]
            print(
                f"{ranks:5} {found['early']:10.0f} {found['late']:9.0f} {ratio:14.2f} {share:20.4f}"
            )


if __name__ == "__main__":
    main()
