"""What agreement costs a step: started early and read late, against asked and waited for.

    python -m tests.bench.agreement [--ranks 1 2 4] [--step-ms 500] [--steps 40]
    unshare -n sh -c 'ip link set lo up && python -m tests.bench.agreement --ranks 64'

No GPU needed. Each rank sleeps for the step, as it does while a device computes; both ways run in
turns in the same processes. Prints µs on the training thread of rank 0 per step, how much of that
is work of the thread itself, and the packets (with confirmations) and bytes that all ranks
together send per step. The counters of the loopback device are those of the whole machine, so the
counts are exact only in a network namespace of their own, as in the second line. `--own-work 16 64
1024` prints instead what the training thread does with the figures of so many ranks, without
processes.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from fttui.engine.core.anomaly.detector import Detector
from fttui.engine.core.anomaly.record import detector_record
from fttui.engine.protocol.codec import encode
from fttui.engine.protocol.events import Record, StepFinished
from fttui.engine.train.distributed.agreement import Agreement
from fttui.engine.train.distributed.place import RankPlace
from fttui.engine.train.distributed.rank_agreement import agreement_of
from fttui.engine.train.loop.step_metrics import _combine, lists_ranks
from tests.support.ranks import in_ranks

NEWS = [7, 0, 0]
NUMBERS = [1.0] * 16
"""As many figures as a rank reports in a step of a task with three parts of the loss."""


def early(agreement: Agreement, sleep: Callable[[], None]) -> float:
    """The way of the step loop: two vectors on their way while the step computes."""
    started = time.perf_counter()
    news, rows = agreement.start_max(NEWS), agreement.start_table(NUMBERS)
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
    spent: dict[str, list[float]] = {"early": [], "late": [], "thread": [], "sent": [], "bytes": []}
    for _ in range(steps):
        agreement.max(NEWS)
        time.sleep(step_s / 4)
        before, worked = loopback(), time.thread_time()
        spent["early"].append(1e6 * early(agreement, lambda: time.sleep(step_s)))
        spent["thread"].append(1e6 * (time.thread_time() - worked))
        after = loopback()
        spent["sent"].append(after[0] - before[0])
        spent["bytes"].append(after[1] - before[1])
        spent["late"].append(1e6 * late(agreement, lambda: time.sleep(step_s)))
    if place.rank == 0:
        out.write_text(json.dumps({name: statistics.median(s) for name, s in spent.items()}))


def own_work(ranks: int, steps: int = 512) -> dict[str, float]:
    """Return what the training thread does with the figures of so many ranks, as means per step.

    The rows of the other ranks are made up, so nothing is sent: µs to combine them, µs of the
    detector, µs to encode the record, bytes of the record in the journal.
    """
    table = np.random.default_rng(0).uniform(1.0, 1.1, (ranks, len(NUMBERS)))
    detector = Detector()
    spent = dict.fromkeys(("combine", "detector", "encode", "bytes"), 0.0)
    for step in range(1, steps + 1):
        table = table.copy()
        begun = time.perf_counter()
        totals = _combine(table, ["ce", "z", "top1"], listed=lists_ranks(step, ranks))
        combined = time.perf_counter()
        lists = {name: value for name, value in totals._asdict().items() if "rank_" in name}
        event = StepFinished(loss=totals.loss, step_s=1.0, **lists)
        encoded = encode(Record(seq=step, time=0.0, step=step, timeline=1, event=event))
        written = time.perf_counter()
        detector.update(detector_record(event, step, leads=True))
        spent["detector"] += 1e6 * (time.perf_counter() - written) / steps
        spent["combine"] += 1e6 * (combined - begun) / steps
        spent["encode"] += 1e6 * (written - combined) / steps
        spent["bytes"] += len(encoded) / steps
    return spent


def loopback() -> tuple[int, int]:
    """Return the packets and the bytes that the loopback device has sent."""
    fields = next(line for line in Path("/proc/net/dev").read_text().splitlines() if "lo:" in line)
    values = fields.split(":")[1].split()
    return int(values[9]), int(values[8])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--step-ms", type=float, default=500.0)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--own-work", type=int, nargs="+", default=[], metavar="RANKS")
    options = parser.parse_args()
    if options.own_work:
        print("ranks  combine µs  detector µs  encode µs  bytes/step  (means per step)")
        for ranks in options.own_work:
            combine, detector, encoded, size = own_work(ranks).values()
            print(f"{ranks:5} {combine:11.0f} {detector:12.0f} {encoded:10.0f} {size:11.0f}")
        return
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # the ranks would all take the first GPU
    print("ranks  early µs  late µs  early, % of a step  thread µs  packets/step  KiB/step")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "medians.json"
        for ranks in options.ranks:
            assert not any(in_ranks(ranks, measure, options.step_ms / 1e3, options.steps, out))
            found = json.loads(out.read_text())
            share = found["early"] / (1e3 * options.step_ms) * 100
            print(
                f"{ranks:5} {found['early']:9.0f} {found['late']:8.0f} {share:19.4f}"
                f" {found['thread']:10.0f} {found['sent']:13.0f} {found['bytes'] / 1024:9.1f}"
            )


if __name__ == "__main__":
    main()
