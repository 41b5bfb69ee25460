"""Evaluations through CUDA graphs against the model's own code: seconds, and whether losses agree.

    python -m tests.bench.eval_graphs [--shape 1b] [--length 512] [--records 128] [--batch 4]

Trains a model with random weights on texts of natural lengths three times, with an evaluation
before the first step and every few steps: without graphs (`train.fast: off`), on static shapes, and
with graphs. The learning rate is so small that the weights stay nearly the same, so the losses of
all evaluations are comparable: those of static shapes and of graphs must be equal to the last
digit, those without graphs differ by rounding. A graph is captured when its form has occurred
`OFTEN` times, which the seconds of single evaluations show.

Without a CUDA device, `--device cpu --shape tiny --length 64 --records 16` tries it out.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path

EVERY = 2
"""Steps between two evaluations."""


@dataclass(frozen=True)
class Evaluated:
    """The evaluations of a run, in their order."""

    fact: str
    seconds: list[float]
    losses: list[float]


def main() -> None:
    """Train with and without graphs, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--shape", default="1b")
    parser.add_argument("--length", type=int, default=512, help="tokens of the longest text")
    parser.add_argument("--records", type=int, default=128, help="texts that are evaluated")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--evaluations", type=int, default=12)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--set", nargs="*", default=[], help="of the configuration")
    options = parser.parse_args()
    forms = ["off", "static", "on"] if options.device == "cuda" else ["off", "static"]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        config = write_config(folder, options)
        found = {fast: evaluated(folder, config, fast, options) for fast in forms}
    report(found)


def write_config(folder: Path, options: argparse.Namespace) -> Path:
    """Write model, texts and configuration; return the path of the configuration."""
    from .speed import text, write_models

    models = write_models({options.shape}, folder, options.device)
    draw = random.Random(0)
    steps = EVERY * (options.evaluations - 1)
    for name, count in (("train", steps * options.batch + 8), ("eval", options.records)):
        with (folder / f"{name}.jsonl").open("w") as file:
            for number in range(count):
                words = draw.lognormvariate(0, 0.7) * options.length / 5
                words = min(options.length, max(16, words))
                file.write(json.dumps({"text": text(round(words), number)}) + "\n")
    config = folder / "eval.yaml"
    config.write_text(
        f"""
name: eval
model: {{id: "{models[options.shape]}", quantize: nf4}}
adapter: {{dropout: 0}}
data: {{train: "{folder}/train.jsonl", eval: "{folder}/eval.jsonl", max_length: {options.length},
       accept: [all]}}
train: {{steps: {steps}, batch: {options.batch}, accumulate: 1, lr: 1e-12, warmup: 0}}
eval: {{every: {EVERY}, at_start: true, batch: {options.batch}}}
checkpoint: {{every: 0, at_start: false}}
"""
    )
    return config


def evaluated(folder: Path, config: Path, fast: str, options: argparse.Namespace) -> Evaluated:
    """Train once and return its evaluations."""
    from fttui.engine.config.load import load_config
    from fttui.engine.protocol.events import EvalFinished, RunStarted
    from fttui.engine.run.run_dir import create_run
    from tests.support.training import play

    overrides = [*options.set, f"train.fast={fast}"]
    loaded = load_config(config, overrides)
    run = create_run(
        folder / f"runs-{fast}", name="eval", config=config, source=loaded.source,
        resolved=loaded.resolved, overrides=overrides, version="0",
    )  # fmt: skip
    played = play(run, device=options.device)
    found = played.events(EvalFinished)
    return Evaluated(
        played.events(RunStarted)[-1].facts["fast mode"],
        [one.seconds for one in found],
        [one.metrics["loss"] for one in found],
    )


def report(found: dict[str, Evaluated]) -> None:
    """Print seconds and losses of the evaluations."""
    print(
        f"{'train.fast':12} {'first, s':>10} {'slowest, s':>11} {'last three, s':>14}  loss, last"
    )
    for fast, one in found.items():
        last = statistics.median(one.seconds[-3:])
        print(
            f"{fast:12} {one.seconds[0]:10.3f} {max(one.seconds):11.3f} {last:14.3f}  "
            f"{one.losses[-1]:.9f}   {one.fact}"
        )
    off = found["off"].losses
    for fast, one in found.items():
        apart = max(abs(a - b) / abs(b) for a, b in zip(one.losses, off, strict=True))
        print(f"{fast:12} largest relative difference from off: {apart:.2e}")
    if "on" in found:
        same = found["on"].losses == found["static"].losses
        print(f"graphs equal static shapes to the last digit: {'yes' if same else 'NO'}")
        for fast in ("static", "on"):
            print(f"{fast:12} seconds: {' '.join(f'{s:.3f}' for s in found[fast].seconds)}")


if __name__ == "__main__":
    main()
