"""Which steps of a run were slow: a histogram of step times against their median.

    python -m tests.bench.stalls RUN_FOLDER
    python -m tests.bench.stalls [--shape 1b] [--length 2048] [--batch 4] [--steps 200]

With the folder of a run its journal is read. Otherwise a run on texts of natural lengths
(log-normal, a median of a fifth of the longest) is trained on a model with random weights and then
read. Steps above `--limit` times the median are listed with their seconds and tokens; those with
many tokens are slow because of them. The first step is not counted.

Without a CUDA device, `--device cpu --shape tiny --length 64 --batch 2 --steps 8` tries it out.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

EDGES = (0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0)
"""Upper ends of the rows of the histogram, in medians."""
WIDTH = 50


def main() -> None:
    """Read or train a run, and print the histogram of its steps."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("run", nargs="?", type=Path, help="folder of a run")
    parser.add_argument("--shape", default="1b")
    parser.add_argument("--length", type=int, default=2048, help="tokens of the longest text")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--limit", type=float, default=3.0, help="medians of a stall")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--set", nargs="*", default=[], help="of the configuration")
    options = parser.parse_args()
    if options.run is not None:
        report(step_times(options.run), options.limit)
        return
    with tempfile.TemporaryDirectory() as folder:
        report(step_times(trained(Path(folder), options)), options.limit)


def step_times(run: Path) -> list[tuple[int, float, int]]:
    """(step, seconds, tokens) of every step in the journal of a run, the first left out."""
    from fttui.engine.protocol.events import RunStarted, StepFinished
    from fttui.engine.run.run_dir import RunDirectory
    from tests.support.played import read_records

    found: list[tuple[int, float, int]] = []
    for record in read_records(RunDirectory(run.absolute())):
        if isinstance(record.event, RunStarted) and record.event.facts:
            for name in ("fast mode", "graphs", "memory of a step"):
                print(f"{name}: {record.event.facts.get(name, '-')}")
        if isinstance(record.event, StepFinished):
            found.append((record.step, record.event.step_s, record.event.tokens))
    return found[1:]


def report(steps: Sequence[tuple[int, float, int]], limit: float) -> None:
    """Print the histogram and the stalls."""
    if not steps:
        print("the journal has fewer than two steps")
        return
    median = statistics.median(seconds for _, seconds, _ in steps)
    print(f"{len(steps)} steps, median {median * 1e3:.1f} ms")
    low = 0.0
    for high in (*EDGES, float("inf")):
        count = sum(low < seconds / median <= high for _, seconds, _ in steps)
        bar = "#" * round(WIDTH * count / len(steps))
        print(f"{low:5.2f} to {high:5.2f} × median {count:6d} {bar}")
        low = high
    slow = [one for one in steps if one[1] > limit * median]
    print(f"above {limit:g} × the median: {len(slow)} steps, {sum(s for _, s, _ in slow):.1f} s")
    for step, seconds, tokens in slow:
        print(f"  step {step:6d}  {seconds:8.3f} s  {seconds / median:6.1f} ×  {tokens:,} tokens")


def trained(folder: Path, options: argparse.Namespace) -> Path:
    """Train on texts of natural lengths and return the folder of the run."""
    from fttui.engine.config.load import load_config
    from fttui.engine.run.run_dir import create_run
    from tests.support.training import play

    from .speed import text, write_models

    models = write_models({options.shape}, folder, options.device)
    draw, data = random.Random(0), folder / "texts.jsonl"
    with data.open("w") as file:
        for number in range(options.steps * options.batch * 4):
            words = min(options.length, max(16, draw.lognormvariate(0, 0.7) * options.length / 5))
            file.write(json.dumps({"text": text(round(words), number)}) + "\n")
    config = folder / "stalls.yaml"
    config.write_text(
        f"""
name: stalls
model: {{id: "{models[options.shape]}", quantize: nf4}}
adapter: {{dropout: 0}}
data: {{train: "{data}", max_length: {options.length}, eval_fraction: 0, accept: [all]}}
train: {{steps: {options.steps}, batch: {options.batch}, accumulate: 4, lr: 1e-4,
        fast: "{"on" if options.device == "cuda" else "static"}"}}
checkpoint: {{every: 0, at_start: false}}
"""
    )
    loaded = load_config(config, options.set)
    run = create_run(
        folder / "runs", name="stalls", config=config, source=loaded.source,
        resolved=loaded.resolved, overrides=options.set, version="0",
    )  # fmt: skip
    play(run, device=options.device)
    return run.path


if __name__ == "__main__":
    main()
