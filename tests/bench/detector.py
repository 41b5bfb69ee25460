"""How good the anomaly detector is, and what it costs.

    python -m tests.bench.detector [--logs FOLDER,FOLDER] [--sensitivities 0.25,0.5,1,2,4]
    python -m tests.bench.detector --against CHECKOUT [--logs FOLDER]

Injects anomalies of known size into runs it makes itself (falling, flat, staircase, noisy,
heavy-tailed) and prints what is found, over the sensitivity knob and beside a z-score of an
exponential average. With folders of labelled logs (`labels.jsonl`, `<id>.jsonl`, and the source of
each log in `sources.tsv`) it scores those too, with intervals of a bootstrap over sources, and with
the rate of false alarms that the other sources would choose. Needs nothing but Python.

With the checkout of another version it prints the costs of both, measured in alternation, and
compares every alert of both in its own runs and in the logs.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import math
import random
import statistics
import sys
import time
import types
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

from fttui.engine.core.anomaly import INSTABILITY, Detector

from .labelled_logs import report

Record = dict[str, Any]


class Naive:
    """Baseline: z > 4 against exponential averages of loss and gradient norm."""

    def __init__(self) -> None:
        self.state: dict[str, tuple[float, float, int]] = {}

    def update(self, record: Record) -> list[str]:
        """Kinds found in one record."""
        found = []
        for key, kind in (("loss", "spike"), ("grad_norm", "grad_explosion")):
            value = record.get(key)
            if value is None:
                continue
            if not math.isfinite(value):
                found.append("nonfinite")
                continue
            mean, var, count = self.state.get(key, (value, 0.0, 0))
            if count > 25 and value - mean > 4 * math.sqrt(var) + 1e-9:
                found.append(kind)
            delta = value - mean
            self.state[key] = (mean + 0.03 * delta, 0.97 * (var + 0.03 * delta * delta), count + 1)
        return found


class Ours:
    """The detector, as kinds."""

    def __init__(self, sensitivity: float = 1.0) -> None:
        self.detector = Detector(sensitivity)

    def update(self, record: Record) -> list[str]:
        """Kinds found in one record."""
        return [alert.kind for alert in self.detector.update(record)]


Watcher = Naive | Ours


def hosts(seed: int, count: int = 400) -> dict[str, list[Record]]:
    """Ordinary runs of five shapes."""
    rng = random.Random(seed)
    shapes: dict[str, tuple[Callable[[int], float], Callable[[], float]]] = {
        "falling": (lambda i: 0.6 + 2.0 * math.exp(-i / 150), lambda: rng.gauss(0, 0.03)),
        "flat": (lambda i: 2.0, lambda: rng.gauss(0, 0.01)),
        "staircase": (lambda i: 1.5 * 0.75 ** (i // 120), lambda: rng.gauss(0, 0.06)),
        "noisy": (lambda i: 1.2 * 0.998**i, lambda: rng.gauss(0, 0.2)),
        "heavy tails": (
            lambda i: 3.0 * 0.9995**i,
            lambda: 0.02 * rng.gauss(0, 1) / math.sqrt(max(rng.gammavariate(1.5, 1 / 1.5), 0.02)),
        ),
    }
    return {
        name: [
            {
                "step": i + 1,
                "loss": level(i) * math.exp(noise()),
                "grad_norm": 0.8 * math.exp(rng.gauss(0, 0.2)),
                "lr": 1e-4,
                "tok_s": 5000 * math.exp(rng.gauss(0, 0.02)) * (0.2 if i % 50 == 49 else 1),
                "mem_allocated": 40 + rng.choice((0, 0, 0, 0.6)),
            }
            for i in range(count)
        ]
        for name, (level, noise) in shapes.items()
    }


def _local(records: list[Record], at: int) -> tuple[float, float]:
    """Level and noise of the loss before a record."""
    losses = [r["loss"] for r in records[at - 50 : at]]
    steps = [b - a for a, b in pairwise(losses)]
    middle = statistics.median(steps)
    noise = 1.4826 * statistics.median(abs(x - middle) for x in steps) / math.sqrt(2)
    return statistics.median(losses), noise


def _spike(size: float) -> Callable[[list[Record], int], None]:
    def inject(records: list[Record], at: int) -> None:
        level, noise = _local(records, at)
        records[at]["loss"] = level + size * noise

    return inject


def _ratio(loss: float, grad: float) -> Callable[[list[Record], int], None]:
    def inject(records: list[Record], at: int) -> None:
        records[at]["loss"] = _local(records, at)[0] * loss
        records[at]["grad_norm"] *= grad

    return inject


def _ramp(size: float, length: int) -> Callable[[list[Record], int], None]:
    def inject(records: list[Record], at: int) -> None:
        noise = _local(records, at)[1]
        for i, record in enumerate(records[at:], 1):
            record["loss"] += size * noise * min(1.0, i / length)

    return inject


def _onward(**changes: Callable[[float, int], float]) -> Callable[[list[Record], int], None]:
    def inject(records: list[Record], at: int) -> None:
        for i, record in enumerate(records[at:]):
            for key, change in changes.items():
                record[key] = change(record[key], i)

    return inject


def _nan(records: list[Record], at: int) -> None:
    records[at]["loss"] = math.nan


def _flatten(records: list[Record], at: int) -> None:
    level, noise = _local(records, at)
    rng = random.Random(at)
    for record in records[at:]:
        record["loss"] = level + rng.gauss(0, noise)


_MACHINE = frozenset({"throughput_drop", "vram_leak"})
CASES: list[tuple[str, Callable[[list[Record], int], None], Iterable[str], int]] = [
    ("spike 10 sd", _spike(10), INSTABILITY, 5),
    ("spike 20 sd", _spike(20), INSTABILITY, 5),
    ("loss x3, grad x9", _ratio(3, 9), INSTABILITY, 5),
    ("grad x10", _ratio(1, 10), INSTABILITY, 5),
    ("divergence 10 sd over 20", _ramp(10, 20), INSTABILITY, 40),
    ("divergence 30 sd over 40", _ramp(30, 40), INSTABILITY, 40),
    ("NaN loss", _nan, INSTABILITY, 5),
    ("grad 0 onward", _onward(grad_norm=lambda x, i: 0.0), {"dead"}, 40),
    ("plateau", _flatten, {"plateau"}, 60),
    ("throughput x0.6", _onward(tok_s=lambda x, i: 0.6 * x), _MACHINE, 40),
    ("memory leak", _onward(mem_allocated=lambda x, i: x * (1 + 0.004 * i)), _MACHINE, 60),
]


def _found(watcher: Watcher, records: list[Record]) -> list[tuple[int, str]]:
    return [(i, kind) for i, record in enumerate(records) for kind in watcher.update(dict(record))]


def inject(make: Callable[[], Watcher], seeds: int) -> dict[str, float]:
    """Share found per case, and `quiet`: the share of untouched runs without an instability."""
    hits: dict[str, list[bool]] = {"quiet": []}
    for seed in range(seeds):
        for records in hosts(seed).values():
            alarms = [k for i, k in _found(make(), records) if k in INSTABILITY and i >= 25]
            hits["quiet"].append(not alarms)
            rng = random.Random(seed)
            for name, change, kinds, horizon in CASES:
                at = rng.randrange(160, 320)
                changed = [dict(record) for record in records]
                change(changed, at)
                seen = _found(make(), changed)
                hit = any(k in kinds and at <= i <= at + horizon for i, k in seen)
                hits.setdefault(name, []).append(hit)
    return {name: sum(values) / len(values) for name, values in hits.items()}


def cost_us(make: Callable[[], Watcher], records: list[Record], passes: int = 5) -> float:
    """Microseconds of processor time per record: the best of some passes."""
    best = math.inf
    for _ in range(passes):
        watcher = make()
        started = time.process_time()
        for record in records:
            watcher.update(record)
        best = min(best, (time.process_time() - started) / len(records) * 1e6)
    return best


def unit_us() -> float:
    """Microseconds of processor time to move a sorted list of 1,000 numbers on by one.

    Costs in this unit compare between machines and loads.
    """
    rng = random.Random(0)
    values = [rng.random() for _ in range(20_000)]
    best = math.inf
    for _ in range(5):
        ordered: list[float] = []
        started = time.process_time()
        for i, value in enumerate(values):
            insort(ordered, value)
            if i >= 1000:
                del ordered[bisect_left(ordered, values[i - 1000])]
        best = min(best, (time.process_time() - started) / len(values) * 1e6)
    return best


def costs_us(makes: list[Callable[[], Watcher]], records: list[Record]) -> list[float]:
    """Return the cost per record of each maker, measured in alternation."""
    rounds = [[cost_us(make, records, passes=1) for make in makes] for _ in range(5)]
    return [min(costs) for costs in zip(*rounds, strict=True)]


def version(checkout: Path) -> Callable[[], Ours]:
    """Return a maker of the detector of another checkout, imported beside this one."""
    package = types.ModuleType("fttui_before")
    package.__path__ = [str(checkout.resolve())]
    sys.modules[package.__name__] = package
    other = importlib.import_module("fttui_before.engine.core.anomaly").Detector

    def make() -> Ours:
        watcher = Ours()
        watcher.detector = other()
        return watcher

    return make


def differences(other: Callable[[], Ours], runs: Iterable[list[Record]]) -> tuple[int, int]:
    """Return how many alerts the detector raises in runs, and how many records differ."""
    alerts = different = 0
    for records in runs:
        pair = (other(), Ours())
        for record in records:
            before, now = (list(map(str, w.detector.update(dict(record)))) for w in pair)
            alerts += len(now)
            different += before != now
    return alerts, different


def _compare(checkout: Path, logs: str, long: list[Record]) -> None:
    other = version(checkout)
    before, now = costs_us([other, Ours], long)
    print(f"cost per record: before {before:.1f} us, now {now:.1f} us, ratio {now / before:.2f}")
    runs = [records for seed in range(4) for records in hosts(seed).values()]
    folders = [Path(name) for name in logs.split(",") if name]
    names = [path for folder in folders for path in sorted(folder.glob("*.jsonl"))]
    runs += [
        [json.loads(line) for line in path.read_text().splitlines()]
        for path in names
        if path.stem != "labels"
    ]
    alerts, different = differences(other, runs)
    records = sum(map(len, runs))
    print(f"{records} records, {alerts} alerts; {different} records with other alerts than before")


def _table(title: str, columns: dict[str, dict[str, float]]) -> None:
    print(f"\n{title}\n" + " " * 26 + "".join(f"{name:>10}" for name in columns))
    for row in next(iter(columns.values())):
        print(f"{row:26}" + "".join(f"{column[row]:10.3f}" for column in columns.values()))


def main() -> None:
    """Print all tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--logs", default="")
    parser.add_argument("--sensitivities", default="0.25,0.5,1,2,4")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--against", type=Path)
    arguments = parser.parse_args()
    long = [record for records in hosts(0, 2000).values() for record in records]
    if arguments.against:
        _compare(arguments.against, arguments.logs, long)
        return
    makers: dict[str, Callable[[], Watcher]] = {
        f"s {text}": functools.partial(Ours, float(text))
        for text in arguments.sensitivities.split(",")
    }
    makers["naive z>4"] = Naive
    _table(
        "injected into synthetic runs", {k: inject(m, arguments.seeds) for k, m in makers.items()}
    )
    if arguments.logs:
        report([Path(name) for name in arguments.logs.split(",")])
    ours, naive = cost_us(Ours, long), cost_us(Naive, long)
    print(f"\ncost per record: {ours:.1f} us, naive {naive:.1f} us, ratio {ours / naive:.1f};")
    print(f"in moves of a sorted list of 1,000 numbers: {ours / unit_us():.0f}")


if __name__ == "__main__":
    main()
