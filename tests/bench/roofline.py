"""How near a step is to the limit of its device: idle time, FLOPs utilization, kinds of kernels.

    python -m tests.bench.roofline [--cases 1b:512:8:1 8b:2048:1:1] [--set KEY=VALUE ...]

A case is shape:length:batch:accumulate, a QLoRA run without dropout on a model with random weights
and rows of full length. Each is a process of its own that runs twice: once as it is, which gives
the time of a step, and once under the profiler, which gives the time in which kernels ran. Idle is
the share of the unprofiled step in which none did; the profiler's own figure is beside it, because
recording slows the host. `least` is the time of the useful operations at the rate of a large matrix
product that was measured in the same process, and `mfu` is its share of the step.

Needs a CUDA device; `--device cpu --cases tiny:64:2:1` tries the script out.
"""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
import tempfile
from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from .children import GROWING_SEGMENTS, Child, in_turn

WARM_STEPS = 3
PROFILED_STEPS = 4
LONGEST = 30
DEVICE_WORK = {"kernel", "gpu_memcpy", "gpu_memset"}
GAPS_US = {"over 100 us": 100.0, "10 to 100 us": 10.0, "under 10 us": 0.0}
"""Gaps between two kernels of the profiled steps by the least of their group."""


@dataclass(frozen=True)
class Case:
    """One row of the table."""

    shape: str
    length: int
    batch: int
    accumulate: int
    steps: int
    device: str
    sets: tuple[str, ...]

    @property
    def name(self) -> str:
        """How the row is named."""
        return f"{self.shape} T{self.length} {self.batch}x{self.accumulate}"


def main() -> None:
    """Measure every case in turn and print its rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", nargs="+",
                        default=["1b:512:8:1", "1b:512:1:8", "8b:2048:1:1"])  # fmt: skip
    parser.add_argument("--steps", type=int, default=12, help="measured ones, after three")
    parser.add_argument("--limit-s", type=float, default=120.0, help="of one case")
    parser.add_argument("--budget-s", type=float, default=480.0, help="no case begins after it")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--set", nargs="*", default=["train.activation_checkpointing=false"])
    options = parser.parse_args()
    cases = []
    for place in options.cases:
        shape, length, batch, accumulate = place.split(":")
        case = Case(shape, int(length), int(batch), int(accumulate), options.steps,
                    options.device, tuple(options.set))  # fmt: skip
        cases.append(case)
    children = [Child(measured, case, environment=GROWING_SEGMENTS) for case in cases]
    for case, row in zip(cases, in_turn(children, options.limit_s, options.budget_s), strict=True):
        show(case, row)


def show(case: Case, row: dict[str, Any]) -> None:
    """Print the rows of one case."""
    if "failed" in row:
        print(f"{case.name}: {row['failed']}; {row.get('took', '')}", flush=True)
        return
    step_s, busy_s, least_s = row["step_s"], row["busy_s"], row["least_s"]
    print(
        f"{case.name}: step {step_s * 1e3:.1f} ms (slowest {row['slowest_s'] * 1e3:.1f}), busy "
        f"{busy_s * 1e3:.1f}, idle {1 - busy_s / step_s:.1%} (profiled {row['idle']:.1%}), least "
        f"{least_s * 1e3:.1f} at {row['rate'] / 1e12:.0f} TFLOP/s, mfu {least_s / step_s:.1%}, "
        f"{row['launches']:.0f} kernels; {row['fact']}; {row['took']}"
    )
    for kind, seconds in row["kinds"].items():
        print(f"    {seconds * 1e3:8.2f} ms {seconds / busy_s:6.1%} {kind}")
    for name, seconds, count in row["longest"]:
        print(f"      {seconds * 1e3:8.2f} ms {count:6.0f} x {name[:100]}")
    print(f"    waits of the device: {row['waits']}")
    for part in row["parts"]:
        device_s = part["device_s"] or 0.0
        print(
            f"      {part['name']}: host {part['host_s'] * 1e3:.1f} device {device_s * 1e3:.1f} ms"
        )
    print("    advice:", "; ".join(row["advice"]), flush=True)


def measured(case: Case) -> dict[str, Any]:
    """Run a case as it is and under the profiler; return the figures of both."""
    import msgspec

    from fttui.engine.protocol.events import RunStarted, StepFinished, StepsProfiled

    with tempfile.TemporaryDirectory() as folder:
        run = played(case, Path(folder), 0)
        # A step is journaled while the next one runs, but for the last.
        ends = [r.time for r in run.records if isinstance(r.event, StepFinished)][:-1]
        took = [after - before for before, after in pairwise(ends)][WARM_STEPS:]
        facts = run.events(RunStarted)[-1].facts
        profiled = played(case, Path(folder), PROFILED_STEPS)
        found = profiled.events(StepsProfiled)[-1]
        longest, waits = traced(profiled.run.profiles / found.trace, found.steps)
    idle = found.idle or 0.0
    rate = found.peak_flops_per_s or 1.0
    return msgspec.to_builtins(found) | {
        "step_s": statistics.median(took),
        "slowest_s": max(took),
        "busy_s": found.step_s * (1 - idle),
        "idle": idle,
        "rate": rate,
        "least_s": found.flops / rate,
        "fact": facts["fast mode"],
        "longest": longest,
        "waits": waits,
    }


def traced(trace: Path, steps: int) -> tuple[list[tuple[str, float, float]], str]:
    """Read a trace; return name, seconds and launches of its longest kernels, and their gaps."""
    with gzip.open(trace) as file:
        events = json.load(file)["traceEvents"]
    kernels = sorted(
        (event for event in events if event.get("cat") in DEVICE_WORK), key=lambda e: e["ts"]
    )
    seconds: dict[str, float] = defaultdict(float)
    for kernel in kernels:
        seconds[kernel["name"]] += kernel["dur"] / 1e6 / steps
    counts = Counter(kernel["name"] for kernel in kernels)
    longest = sorted(seconds, key=lambda name: -seconds[name])[:LONGEST]
    gaps: dict[str, list[float]] = {name: [] for name in GAPS_US}
    end = kernels[0]["ts"] if kernels else 0.0
    for kernel in kernels:
        gap = max(0.0, kernel["ts"] - end)
        gaps[next(name for name, least in GAPS_US.items() if gap >= least)].append(gap)
        end = max(end, kernel["ts"] + kernel["dur"])
    said = (f"{name}: {len(found) / steps:.0f} x, {sum(found) / 1e3 / steps:.2f} ms"
            for name, found in gaps.items())  # fmt: skip
    return [(name, seconds[name], counts[name] / steps) for name in longest], "; ".join(said)


def played(case: Case, folder: Path, profile_steps: int) -> Any:
    """Play a run of a case; a profiled one ends with its profile."""
    import fttui.engine.train.session as session
    from fttui.engine.config.load import load_config
    from fttui.engine.run.run_dir import create_run
    from tests.support.training import play

    from .random_models import Peaks, counted_loader

    peaks = Peaks(case.device)
    vars(session)["load_model"] = counted_loader(
        case.shape, peaks, from_disk=False, loaded=lambda found: None
    )
    steps = case.steps + WARM_STEPS + 2
    data = folder / "texts.jsonl"
    rows = ({"text": " ".join(f"{number * 7 + i:04d}" for i in range(case.length // 4))}
            for number in range(steps * case.batch * case.accumulate))  # fmt: skip
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = folder / "roofline.yaml"
    config.write_text(
        f"""
name: roofline
task: sft
model: {{id: random, quantize: nf4}}
adapter: {{dropout: 0}}
data: {{train: {data}, max_length: {case.length}, eval_fraction: 0, accept: [all]}}
train: {{steps: {steps}, batch: {case.batch}, accumulate: {case.accumulate},
        fast: "{"on" if case.device == "cuda" else "static"}"}}
checkpoint: {{every: 0, at_start: false}}
"""
    )
    loaded = load_config(config, list(case.sets))
    run = create_run(
        folder / "runs", name="roofline", config=config, source=loaded.source,
        resolved=loaded.resolved, overrides=list(case.sets), version="0",
    )  # fmt: skip
    return play(run, device=case.device, profile_steps=profile_steps)


if __name__ == "__main__":
    main()
