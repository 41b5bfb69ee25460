"""A race and a sweep on several devices against the same ones on one: seconds, and the same losses.

    python -m tests.bench.side_by_side [--shape 1b] [--devices 0,1] [--steps 60]

Trains a model with random weights by `fttui run`, then races three learning rates from the middle
of the run and sweeps two keys, each on one device and on all of them, by the commands a user would
type. The last lines of each command are printed: the verdict of a race on devices says whether the
losses of the run equal those of the side runs, bit by bit. The ratio contains starting the engines,
which a longer race or sweep would hide.

`--shape tiny --devices cpu,cpu --device cpu --steps 12 --length 64` tries it out.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

RATES = "1e-3,2e-4,5e-5"


@dataclass(frozen=True)
class Command:
    """A command and what it took."""

    seconds: float
    status: int
    lines: list[str]


def main() -> None:
    """Train, race and sweep, and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--shape", default="1b")
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--steps", type=int, default=60, help="of a variant and of a trial")
    parser.add_argument("--devices", default="0,1")
    parser.add_argument("--device", default="cuda", help="where the model is written")
    parser.add_argument("--what", nargs="+", default=["race", "sweep"])
    parser.add_argument("--limit-s", type=float, default=200.0, help="of a command")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        folder = Path(place)
        config = write_config(folder, options)
        compare = {"race": race, "sweep": sweep}
        for name in options.what:
            alone, together = compare[name](folder, config, options)
            print(
                f"{name}: {alone.seconds:.1f} s on one device, {together.seconds:.1f} s on all: "
                f"{together.seconds / alone.seconds:.2f} of the time\n",
                flush=True,
            )


def race(folder: Path, config: Path, options: argparse.Namespace) -> tuple[Command, Command]:
    """Race three rates from the middle of a run, in its engine and then on all devices."""
    start = options.steps // 2
    call(folder, options, "run", config, "--headless", "--set", f"train.steps={4 * start}")
    run = next(path.name for path in (folder / "runs").iterdir() if path.name.startswith("side-"))
    words = ["race", f"{run}@{start}", f"lr={RATES}", "--steps", options.steps, "--yes", "--keep"]
    alone = call(folder, options, *words, "none")
    return alone, call(folder, options, *words, "best", "--devices", options.devices)


def sweep(folder: Path, config: Path, options: argparse.Namespace) -> tuple[Command, Command]:
    """Train four trials, one after another and then on all devices."""
    words = ["sweep", config, "train.lr=1e-3,1e-4", "adapter.r=8,16", "--steps", options.steps,
             "--sampler", "grid", "--pruner", "none", "--yes"]  # fmt: skip
    alone = call(folder, options, *words)
    return alone, call(folder, options, *words, "--devices", options.devices)


def write_config(folder: Path, options: argparse.Namespace) -> Path:
    """Write model, texts and configuration; return the path of the configuration."""
    import json

    from .speed import text, write_models

    models = write_models({options.shape}, folder, options.device)
    for name, count in (("train", 400), ("eval", 32)):
        with (folder / f"{name}.jsonl").open("w") as file:
            for number in range(count):
                file.write(json.dumps({"text": text(options.length // 5, number)}) + "\n")
    config = folder / "side.yaml"
    config.write_text(
        f"""
name: side
model: {{id: "{models[options.shape]}", quantize: nf4}}
data: {{train: "{folder}/train.jsonl", eval: "{folder}/eval.jsonl", max_length: {options.length},
       accept: [all]}}
train: {{steps: 60, batch: 4, accumulate: 1, lr: 2e-4, warmup: 0, deterministic: true}}
eval: {{every: {max(2, options.steps // 3)}}}
checkpoint: {{every: {options.steps // 2}, keep: 10}}
"""
    )
    return config


def call(folder: Path, options: argparse.Namespace, *words: object) -> Command:
    """Run a command of fttui, and print its last lines."""
    typed = [str(word) for word in words]
    started_s = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "fttui.tui", *typed],
        env={**os.environ, "FTTUI_RUNS": str(folder / "runs"), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=folder,
        timeout=options.limit_s, check=False,
    )  # fmt: skip
    took = Command(time.monotonic() - started_s, done.returncode, done.stdout.splitlines())
    print(f"$ fttui {' '.join(typed)}\n  {took.seconds:.1f} s, status {took.status}")
    for line in took.lines[-16:]:
        print(f"  | {line}")
    print(flush=True)
    return took


if __name__ == "__main__":
    main()
