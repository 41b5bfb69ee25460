"""What watching costs: steps with engine, hub and viewers against the bare trainer, in one run.

    python -m tests.bench.monitoring [--shape 1b --length 512 --accumulate 8 --viewers 5]

One run changes between three ways of making a step, a few steps each, in turns, so that whatever
the machine does meets all of them: `watched` is a run as it is, followed live by viewers; `waited`
is the same, but every update waits for the host's verdict, as it does where the device cannot give
one; `quiet` is as `watched` without anything handed to journal, hub and viewers; `bare` is the HF
trainer's loop over the same model, batches and update, without guard, detector, figures or control,
so without waiting for the device at all. The first step after a change does not count. Times are
taken on the device's own clock. With `--device cpu` it runs anywhere; then the hand-off counts.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from fttui.engine.run.run_dir import RunDirectory
from fttui.tui.connection.engine_process import start_engine
from tests.support.shaped_run import Shaped, records_of, shaped_run

ARMS = ("watched", "waited", "quiet", "bare")
WARM_STEPS = 3


def schedule(rounds: int, block: int) -> list[str]:
    """The way of every step: warm up, blocks of each way in every order, then waits are counted."""
    steps = ["watched"] * WARM_STEPS
    for number in range(rounds):
        steps += [arm for arm in order(number) for _ in range(block)]
    return steps + [f"{arm}, counted" for arm in ARMS for _ in range(3)]


def order(number: int) -> tuple[str, ...]:
    """The ways' order in a round; neighbouring rounds begin with different ones."""
    every = list(itertools.permutations(ARMS))
    return every[7 * number % len(every)]


def blocks(spans: list[float], rounds: int, block: int) -> dict[str, list[float]]:
    """Median step time of every round, by way, without each block's first step."""
    found: dict[str, list[float]] = defaultdict(list)
    start = WARM_STEPS
    for number in range(rounds):
        for arm in order(number):
            found[arm].append(statistics.median(spans[start + 1 : start + block]))
            start += block
    return found


def compared(found: dict[str, list[float]], arm: str, base: str) -> tuple[float, float]:
    """Mean difference per round and its 95 % half width, as shares of the base's step."""
    apart = [a - b for a, b in zip(found[arm], found[base], strict=True)]
    step = statistics.fmean(found[base])
    error = statistics.stdev(apart) / len(apart) ** 0.5
    return statistics.fmean(apart) / step, 2 * error / step


def main() -> None:
    """Measure and print."""
    if len(sys.argv) > 1 and Path(sys.argv[1]).is_dir():
        sys.exit(engine(Path(sys.argv[1])))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", default="1b")
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--accumulate", type=int, default=8)
    parser.add_argument("--fast", default="on")
    parser.add_argument("--viewers", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument(
        "--block", type=int, default=5, help="steps, the first of which is left out"
    )
    parser.add_argument("--limit-s", type=float, default=180.0)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    options = parser.parse_args()
    if options.device == "cpu":
        os.environ.update(ACCELERATE_USE_CPU="true", CUDA_VISIBLE_DEVICES="")
    steps = schedule(options.rounds, options.block)
    with tempfile.TemporaryDirectory() as folder:
        shaped = Shaped(options.shape, options.length, options.accumulate, 1, options.fast,
                        len(steps), nf4=options.device == "cuda")  # fmt: skip
        run = shaped_run(Path(folder) / "run", shaped)
        (run.path / "steps.json").write_text(json.dumps(steps))
        seen = play(run, options)
        measured = json.loads((run.path / "measured.json").read_text())
        show(blocks(measured["spans"], options.rounds, options.block), measured, seen)


def play(run: RunDirectory, options: argparse.Namespace) -> list[str]:
    """Let the engine train under the eyes of viewers; the last line each of them said."""
    started = start_engine(run, 1, program="tests.bench.monitoring")
    (run.path / "go").touch()
    started.wait_until_served(120)
    follow = [sys.executable, "-m", "tests.support.follower", str(run.path)]
    viewers = [subprocess.Popen(follow, stdout=subprocess.PIPE, text=True)
               for _ in range(options.viewers)]  # fmt: skip
    try:
        for viewer in viewers:
            assert viewer.stdout is not None
            assert viewer.stdout.readline() == "live\n"
        (run.path / "seen").touch()
        started.process.wait(options.limit_s)
        records_of(run)
        return [viewer.communicate(timeout=30)[0].strip() for viewer in viewers]
    finally:
        processes: list[subprocess.Popen[Any]] = [started.process, *viewers]
        for process in processes:
            if process.poll() is None:
                process.kill()


def show(found: dict[str, list[float]], measured: dict[str, Any], seen: list[str]) -> None:
    """Print the tables."""
    print(f"viewers saw (records, in order): {seen}")
    print(f"step of the bare trainer: {1e3 * statistics.fmean(found['bare']):.2f} ms, "
          f"{len(found['bare'])} blocks per way")  # fmt: skip
    for arm, base in (
        ("watched", "quiet"),
        ("quiet", "bare"),
        ("watched", "bare"),
        ("waited", "bare"),
    ):
        share, error = compared(found, arm, base)
        print(f"{arm:8} against {base:6} {share:+8.3%} ± {error:.3%} (95 %)")
    print(f"between two steps the device waits {1e3 * measured['idle_s']:.3f} ms (median)")
    print(f"hand-off: {measured['handoff_us']:.2f} µs per record in bursts; between "
          f"steps {measured['handoff_cold_us']:.2f} (median), measuring it included")  # fmt: skip
    for arm, waits in measured["waits"].items():
        print(f"{arm}: waits for the device per step: {waits['per_step']:g} {waits['where']}")


def engine(run: Path) -> int:
    """Be the engine, with a stepper that changes its ways."""
    from fttui.engine.__main__ import main as engine_main
    from tests.support.alternating import Ways
    from tests.support.random_engine import get_ready

    ways = Ways(json.loads((run / "steps.json").read_text()), run / "seen")
    ways.install()
    get_ready(run)
    code = engine_main([str(run)])
    (run / "measured.json").write_text(json.dumps(ways.measured()))
    return code


if __name__ == "__main__":
    started = time.monotonic()
    main()
    print(f"{time.monotonic() - started:.0f} s in all")
