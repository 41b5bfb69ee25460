"""Several GPUs against one: the same configuration on 1 rank and on all, each rank with its share.

    python -m tests.bench.scaling [--shape 8b --length 1024 --accumulate 8] [--fast on off]

Runs are started as `fttui run` starts them: torchrun, hub, journal and control, with a viewer that
follows live. Micro-batches per rank stay the same, so at best N ranks do N times the tokens in the
same time: efficiency = tokens/s(N) / (N × tokens/s(1)). Each rank makes its random weights once.
With `--device cpu` it runs anywhere, over gloo, to see that it works.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from fttui.engine.protocol.events import Record, RunStarted, StepFinished, StepsProfiled
from fttui.engine.run.run_dir import RunDirectory
from fttui.tui.connection.engine_process import StartedEngine, start_engine
from tests.support.shaped_run import PROFILED_AFTER, Shaped, records_of, shaped_run

WARM_STEPS = 2
"""Graphs are captured in the first of them."""
GOAL = 0.95
_POLL_S = 0.1


@dataclasses.dataclass(frozen=True)
class Measured:
    """One run."""

    ranks: int
    step_s: float
    """Median, from the end of a step to the end of the next."""
    tokens: int
    """Per step, over all ranks."""
    own_s: float
    """The slowest rank's own time, before it waits for the others; NaN with one rank."""
    skew_s: float
    average_s: float
    """What the last rank to come spends on averaging gradients; NaN where DDP does it."""
    wait_s: float
    """What the first rank to come waits there besides."""
    agreement_s: float
    """Words between ranks, on rank 0's training thread."""
    idle: float | None
    """Share of a profiled step in which rank 0's device did nothing."""
    kinds: dict[str, float]
    said: str

    @property
    def tokens_per_s(self) -> float:
        """Over all ranks."""
        return self.tokens / self.step_s


class Waiting:
    """An engine that has been started and imports what it needs until it is let go."""

    def __init__(self, folder: Path, fast: str, ranks: int, options: argparse.Namespace) -> None:
        self.fast, self.ranks, self._options = fast, ranks, options
        profiled = options.profile and fast != "off"
        self._run = shaped_run(
            folder / f"{fast}-{ranks}",
            Shaped(
                options.shape, options.length, options.accumulate, ranks, fast,
                steps=WARM_STEPS + options.steps + profiled,
                nf4=options.device == "cuda", sets=tuple(options.set),
            ),
        )  # fmt: skip
        os.environ[PROFILED_AFTER] = str(WARM_STEPS + options.steps if profiled else 0)
        program = "tests.support.random_engine"
        self._engine: StartedEngine = start_engine(self._run, ranks, program=program)

    def measure(self) -> Measured:
        """Let it train and read what it left behind."""
        follow = [sys.executable, "-m", "tests.support.follower", str(self._run.path)]
        (self._run.path / "go").touch()
        self._engine.wait_until_served(60)
        with subprocess.Popen(follow, stdout=subprocess.DEVNULL) as viewer:
            try:
                self._engine.process.wait(self._options.limit_s)
            finally:
                viewer.terminate()
                self.end()
        return read(self._run, self.ranks, self._options.steps)

    def end(self) -> None:
        """End it, whatever it does."""
        if self._engine.process.poll() is None:
            self._engine.process.terminate()
            self._engine.process.wait(30)


def read(run: RunDirectory, ranks: int, steps: int) -> Measured:
    """The figures of a run that has ended."""
    records = records_of(run)
    last = WARM_STEPS + steps
    timed = [(r.time, r.event) for r in records if isinstance(r.event, StepFinished)
             and WARM_STEPS <= r.step <= last]  # fmt: skip
    spans = [after[0] - before[0] for before, after in itertools.pairwise(timed)]
    events = [event for _, event in timed[1:]]
    return Measured(
        ranks=ranks,
        step_s=statistics.median(spans),
        tokens=events[-1].tokens,
        own_s=statistics.median(max(e.rank_s, default=float("nan")) for e in events),
        skew_s=statistics.median(e.skew_s for e in events),
        **_meters(run, ranks, WARM_STEPS, last),
        **_profile(records),
        said=next(e.facts["fast mode"] for r in records if isinstance(e := r.event, RunStarted)
                  and e.facts),
    )  # fmt: skip


def _meters(run: RunDirectory, ranks: int, first: int, last: int) -> dict[str, Any]:
    every = [json.loads((run.path / f"meters-{rank}.json").read_text()) for rank in range(ranks)]
    averages = list(zip(*(one["average"][first:last] for one in every), strict=True))
    nan = float("nan")
    return {
        "agreement_s": statistics.median(every[0]["agreement"][first:last]),
        "average_s": statistics.median(map(min, averages)) if averages else nan,
        "wait_s": statistics.median(max(a) - min(a) for a in averages) if averages else nan,
    }


def _profile(records: list[Record]) -> dict[str, Any]:
    taken = [r.event for r in records if isinstance(r.event, StepsProfiled)]
    if not taken:
        return {"idle": None, "kinds": {}}
    return {"idle": taken[-1].idle, "kinds": taken[-1].kinds}


def show(fast: str, one: Measured, many: Measured) -> None:
    """A mode's rows, and where the time goes."""
    efficiency = many.tokens_per_s / (many.ranks * one.tokens_per_s)
    for row, note in ((one, one.said), (many, f"efficiency {efficiency:.1%}, goal {GOAL:.0%}")):
        print(f"{fast:6} {row.ranks:5} {row.tokens_per_s:10.0f} {1e3 * row.step_s:9.1f}  {note}",
              flush=True)  # fmt: skip
    extra = many.step_s - one.step_s
    print(f"       per step: {1e3 * extra:+.2f} ms against one rank; of the slowest rank's own "
          f"{1e3 * many.own_s:.1f} ms, skew {1e3 * many.skew_s:.2f}; averaging "
          f"{1e3 * many.average_s:.2f}, wait there {1e3 * many.wait_s:.2f}; agreement "
          f"{1e6 * many.agreement_s:.0f} µs = {many.agreement_s / many.step_s:.3%} of it, on the "
          f"host ({1e6 * one.agreement_s:.0f} with one rank)", flush=True)  # fmt: skip
    for row in (one, many):
        if row.idle is not None:
            busy = ", ".join(f"{kind} {1e3 * s:.1f}" for kind, s in row.kinds.items())
            print(f"       profile, {row.ranks} ranks: idle {row.idle:.1%}; busy ms: {busy}",
                  flush=True)  # fmt: skip


def main() -> None:
    """Measure every mode and print its table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", default="8b")
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--accumulate", type=int, default=8)
    parser.add_argument("--fast", nargs="+", default=["on", "off"])
    parser.add_argument("--ranks", type=int, help="all devices of the machine by default")
    parser.add_argument("--steps", type=int, default=6, help="measured ones, after two")
    parser.add_argument(
        "--profile", type=int, choices=[0, 1], default=1, help="0: none in fast mode"
    )
    parser.add_argument("--limit-s", type=float, default=150.0, help="of one run")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--set", nargs="*", default=[], help="of the configuration")
    options = parser.parse_args()
    os.environ["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] = "5"
    if options.device == "cpu":
        os.environ |= {"ACCELERATE_USE_CPU": "true", "CUDA_VISIBLE_DEVICES": ""}
    ranks = options.ranks or _devices()
    print(f"{options.shape}, {options.length} tokens, batch 1 × {options.accumulate}\n"
          f"{'fast':6} {'ranks':>5} {'tokens/s':>10} {'ms/step':>9}", flush=True)  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        waiting = [Waiting(Path(folder), fast, n, options)
                   for fast in options.fast for n in (1, ranks)]  # fmt: skip
        try:
            for one, many in zip(waiting[::2], waiting[1::2], strict=True):
                try:
                    show(one.fast, one.measure(), many.measure())
                except (RuntimeError, subprocess.TimeoutExpired) as error:
                    print(f"{one.fast:6} {error}", flush=True)
        finally:
            for engine in waiting:
                engine.end()


def _devices() -> int:
    import torch

    return max(2, torch.cuda.device_count())


if __name__ == "__main__":
    started = time.monotonic()
    main()
    print(f"{time.monotonic() - started:.0f} s in all")
