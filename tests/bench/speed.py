"""Speed against stock TRL: same shape, data, loss and card, in one run.

    python -m tests.bench.speed [--cases 1b:512 1b:2048 8b:1024] [--what stock fast fast+ plain]

Needs a CUDA device and nothing else: models have random weights, made on the device. Every
measurement is a process of its own with a time limit. `stock` is TRL's `SFTTrainer` for QLoRA as
it comes (activation checkpointing on), `stock+` without checkpointing; `fast` is a run of ours,
journal and hub record included, with checkpointing, `fast+` without; `bare` and `bare+` are the
same without fused layers, `plain` and `plain+` are ours without fast mode, `lean` and `lean+` fast
and lean at once, with adapters in bf16. Batch 1 × accumulation 8, r 16 on all linears.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import multiprocessing
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ACCUMULATE = 8
DROPOUT = 0.05
WARM_STEPS = 2
GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Case:
    """One measurement."""

    shape: str
    length: int
    what: str
    steps: int
    device: str
    sets: tuple[str, ...]

    @property
    def checkpointed(self) -> bool:
        """Activations are recomputed in the backward pass."""
        return not self.what.endswith("+")


def main() -> None:
    """Measure every case and print a row for each, then the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", nargs="+", default=["1b:512", "1b:2048", "8b:1024"])
    parser.add_argument("--what", nargs="+", default=["stock", "fast", "fast+"])
    parser.add_argument("--steps", type=int, default=5, help="measured ones, after two")
    parser.add_argument("--limit-s", type=float, default=90.0, help="of one measurement")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--set", nargs="*", default=[], help="of our configuration")
    options = parser.parse_args()
    cases = [Case(place.split(":")[0], int(place.split(":")[1]), what, options.steps,
                  options.device, tuple(options.set))
             for place in options.cases for what in options.what]  # fmt: skip
    waiting = [Child(case) for case in cases]
    print(f"{'case':12} {'what':8} {'ms/micro':>9} {'tokens/s':>9} {'GiB alloc':>9} "
          f"{'reserved':>9} {'ratio':>6}  notes", flush=True)  # fmt: skip
    baselines: dict[str, float] = {}
    for child in waiting:
        row, place = child.measure(options.limit_s), f"{child.case.shape}:{child.case.length}"
        if "error" not in row:
            baselines.setdefault(place, row["tokens_per_s"])
        show(place, child.case.what, row, baselines.get(place))


class Child:
    """A process that has imported everything and waits for its turn."""

    def __init__(self, case: Case) -> None:
        self.case = case
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_measure, args=(case, theirs), daemon=True)
        self._process.start()
        theirs.close()

    def measure(self, limit_s: float) -> dict[str, Any]:
        """Let it measure; a failure or the time limit is a row too."""
        try:
            self._pipe.recv()
            self._pipe.send("go")
            late = {"error": f"took over {limit_s:.0f} s"}
            found: dict[str, Any] = self._pipe.recv() if self._pipe.poll(limit_s) else late
        except EOFError:
            found = {"error": "the process died"}
        self._process.kill()
        self._process.join()
        return found


def show(place: str, what: str, row: dict[str, Any], baseline: float | None) -> None:
    """Print a row of the table."""
    if "error" in row:
        print(f"{place:12} {what:8} {row['error']}", flush=True)
        return
    ratio = row["tokens_per_s"] / (baseline or row["tokens_per_s"])
    print(f"{place:12} {what:8} {row['ms']:9.1f} {row['tokens_per_s']:9.0f} "
          f"{row['allocated']:9.2f} {row['reserved']:9.2f} {ratio:5.1f}x  {row['notes']}",
          flush=True)  # fmt: skip


def _measure(case: Case, answer: Any) -> None:
    import trl  # noqa: F401

    import fttui.engine.train.session  # noqa: F401

    answer.send("ready")
    answer.recv()
    run = stock if case.what.startswith("stock") else ours
    try:
        started = time.monotonic()
        row = run(case)
        notes = f"{row.pop('notes', '')} {time.monotonic() - started:.0f} s in all"
        answer.send(row | {"notes": notes, **memory(case.device)})
    except Exception as error:  # noqa: BLE001 -- the table says what went wrong
        import traceback

        traceback.print_exc()
        answer.send({"error": f"{type(error).__name__}: {str(error)[:200]}"})
    sys.stdout.flush()


def memory(device: str) -> dict[str, float]:
    """Peaks of this process, GiB."""
    import torch

    if device != "cuda":
        return {"allocated": 0.0, "reserved": 0.0}
    return {"allocated": torch.cuda.max_memory_allocated() / GIB,
            "reserved": torch.cuda.max_memory_reserved() / GIB}  # fmt: skip


def summary(ends: list[float], length: int) -> dict[str, Any]:
    """From the times at which steps ended."""
    took = [after - before for before, after in itertools.pairwise(ends)][WARM_STEPS:]
    step_s = statistics.median(took)
    return {"ms": step_s / ACCUMULATE * 1e3, "tokens_per_s": ACCUMULATE * length / step_s}


def stock(case: Case) -> dict[str, Any]:
    """TRL's trainer with its defaults."""
    import torch
    from datasets import Dataset
    from datasets.table import InMemoryTable
    from peft import LoraConfig
    from transformers import TrainerCallback
    from trl import SFTConfig, SFTTrainer

    from tests.support.shapes import random_llama
    from tests.support.tiny import byte_tokenizer

    on_gpu = case.device == "cuda"
    dtype = torch.bfloat16 if on_gpu else torch.float32
    tokenizer = byte_tokenizer()
    model = random_llama(case.shape, tokenizer, case.device, nf4=True, dtype=dtype)
    steps = case.steps + WARM_STEPS + 1
    rows = [tokenizer(text(case.length, number))["input_ids"][: case.length]
            for number in range(steps * ACCUMULATE)]  # fmt: skip
    # With its fingerprint given: computing one fails on some pairs of Python and pyarrow.
    table = InMemoryTable.from_pydict({"input_ids": rows, "labels": rows})
    ends: list[float] = []

    class Watch(TrainerCallback):  # type: ignore[misc]  # transformers is untyped
        def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
            if on_gpu:  # what making the model took is no part of training
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            if on_gpu:
                torch.cuda.synchronize()
            ends.append(time.perf_counter())

    with tempfile.TemporaryDirectory() as folder:
        trainer = SFTTrainer(
            model=model,
            args=SFTConfig(
                folder, max_length=case.length, per_device_train_batch_size=1,
                gradient_accumulation_steps=ACCUMULATE, max_steps=steps, bf16=on_gpu,
                use_cpu=not on_gpu, gradient_checkpointing=case.checkpointed, logging_steps=1,
                report_to="none", save_strategy="no", disable_tqdm=True,
                dataset_kwargs={"skip_prepare_dataset": True},
            ),
            train_dataset=Dataset(table, fingerprint="texts"),
            processing_class=tokenizer,
            peft_config=LoraConfig(r=16, lora_alpha=32, lora_dropout=DROPOUT,
                                   target_modules="all-linear", task_type="CAUSAL_LM"),
            callbacks=[Watch()],
        )  # fmt: skip
        trainer.train()
    return summary(ends, case.length)


def text(length: int, number: int) -> str:
    """At least `length` tokens of the byte-level tokenizer."""
    return " ".join(f"{number * 7 + i:04d}" for i in range(length // 4))


def ours(case: Case) -> dict[str, Any]:
    """A whole run of ours: session, journal, guard, detector."""
    import fttui.engine.train.session as session
    from fttui.engine.model.lean import make_lean
    from fttui.engine.model.load import equip
    from fttui.engine.model.precision import compute_dtype
    from fttui.engine.train.fast import program
    from tests.support.shapes import random_llama
    from tests.support.tiny import byte_tokenizer

    def load(config: Any, device: Any, progress: Any) -> Any:
        dtype = compute_dtype(config.model.precision, device)
        tokenizer = byte_tokenizer()
        base = random_llama(case.shape, tokenizer, device, nf4=True, dtype=dtype)
        if config.train.memory == "lean":
            make_lean(base, device)
            forget_what_loading_took(device)
        return equip(base, tokenizer, config, device, progress)

    if case.what.startswith("bare"):
        vars(program)["fuse"] = lambda model: 0
    with tempfile.TemporaryDirectory() as folder:
        vars(session)["load_model"] = load
        ends, facts = _play(case, Path(folder))
    return summary(ends, case.length) | {"notes": facts}


def forget_what_loading_took(device: Any) -> None:
    """The real loader never has a whole lean model on the device; this one made it there."""
    import torch

    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def _play(case: Case, folder: Path) -> tuple[list[float], str]:
    from fttui.engine.config.load import load_config
    from fttui.engine.protocol.events import LogEmitted, RunStarted, StepFinished
    from fttui.engine.run.layout import create_run
    from tests.support.training import play

    steps = case.steps + WARM_STEPS + 1
    data = folder / "texts.jsonl"
    rows = ({"text": text(case.length, number)} for number in range(steps * ACCUMULATE + 8))
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    fast = "off" if case.what.startswith("plain") else "on" if case.device == "cuda" else "static"
    config = folder / "speed.yaml"
    config.write_text(
        f"""
name: speed
task: sft
model: {{id: random, quantize: nf4}}
adapter: {{dropout: {DROPOUT}}}
data: {{train: {data}, max_length: {case.length}, eval_fraction: 0.01}}
train: {{steps: {steps}, batch: 1, accumulate: {ACCUMULATE}, fast: "{fast}",
        activation_checkpointing: {str(case.checkpointed).lower()}}}
checkpoint: {{every: 0, at_start: false}}
"""
    )
    lean = ["train.memory=lean", "train.adapter_precision=bf16"]
    sets = [*(lean if case.what.startswith("lean") else []), *case.sets]
    loaded = load_config(config, sets)
    run = create_run(
        folder / "runs", name="speed", config=config, source=loaded.source,
        resolved=loaded.resolved, overrides=sets, version="0",
    )  # fmt: skip
    played = play(run, device=case.device)
    ends = [r.time for r in played.records if isinstance(r.event, StepFinished)]
    said = [e.text for e in played.events(LogEmitted) if e.level != "info"]
    return ends, "; ".join([played.events(RunStarted)[-1].facts["fast mode"], *said])


if __name__ == "__main__":
    main()
