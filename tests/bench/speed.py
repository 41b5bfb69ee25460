"""Speed and memory against stock TRL: same shape, data, loss and card, in one run.

    python -m tests.bench.speed [--cases 1b:512 1b:2048 8b:1024] [--what stock fast fast+ lean]

Needs a CUDA device and nothing else; `--device cpu --cases tiny:128` tries the script out. Every
measurement is a process of its own with a time limit. `stock` is TRL's `SFTTrainer` for QLoRA as
it comes (activation checkpointing on), `stock+` without checkpointing; `fast` is a run of ours,
journal and hub record included, with checkpointing, `fast+` without; `bare` and `bare+` are the
same without fused layers, `plain` and `plain+` are ours without fast mode, `lean` and `lean+` fast
and lean at once, with adapters in bf16. Batch 1 × accumulation 8, r 16 on all linears.

Models have random weights. Up to 8 GiB in bf16 they are written once by a process of its own, and
everybody loads and quantizes them from disk as users do; larger ones are made on the device, linear
by linear. Memory is the peak from there to the last step, capturing graphs included: both sides
begin with an emptied allocator. What loading took is in the notes. The allocator is set as each
side has it: the engine asks for segments that grow, TRL for nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .children import GROWING_SEGMENTS, Child, Work, in_turn

if TYPE_CHECKING:
    from .random_models import Peaks

ACCUMULATE = 8
DROPOUT = 0.05
WARM_STEPS = 2


@dataclasses.dataclass(frozen=True)
class Case:
    """One measurement."""

    shape: str
    length: int
    what: str
    steps: int
    device: str
    sets: tuple[str, ...] = ()
    model: Path | None = None
    """Its folder; None where it is made on the device."""

    @property
    def place(self) -> str:
        """Shape and length."""
        return f"{self.shape}:{self.length}"

    @property
    def is_stock(self) -> bool:
        """TRL's trainer."""
        return self.what.startswith("stock")

    @property
    def checkpointed(self) -> bool:
        """Activations are recomputed in the backward pass."""
        return not self.what.endswith("+")


def main() -> None:
    """Measure every case and print a row for each, then the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", nargs="+", default=["1b:512", "1b:2048", "8b:1024"])
    parser.add_argument("--what", nargs="+", default=["stock", "fast", "fast+", "lean"])
    parser.add_argument("--steps", type=int, default=5, help="measured ones, after two")
    parser.add_argument("--limit-s", type=float, default=90.0, help="of one measurement")
    parser.add_argument("--budget-s", type=float, default=480.0, help="no row begins after it")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--set", nargs="*", default=[], help="of our configuration")
    options = parser.parse_args()
    places = [place.split(":") for place in options.cases]
    with tempfile.TemporaryDirectory() as folder:
        models = write_models({shape for shape, _ in places}, Path(folder), options.device)
        cases = [Case(shape, int(length), what, options.steps, options.device,
                      tuple(options.set), models.get(shape))
                 for shape, length in places for what in options.what]  # fmt: skip
        measure(cases, options.limit_s, options.budget_s, _measured)


def write_models(shapes: set[str], folder: Path, device: str) -> dict[str, Path]:
    """Put models on disk; those too large for that are left out."""
    folders: dict[str, Path] = {}
    for shape in sorted(shapes):
        row = Child(_write, shape, folder / shape, device, environment={}).measure(120.0)
        if "failed" in row:
            raise SystemExit(f"the model {shape} was not written: {row['failed']}")
        if row["written"]:
            folders[shape] = folder / shape
            print(f"{shape} is on disk: {row['took']}", flush=True)
    return folders


def _write(shape: str, folder: Path, device: str) -> dict[str, Any]:
    from .random_models import soon_written, write_model

    if not soon_written(shape):
        return {"written": False}
    write_model(shape, folder, device)
    return {"written": True}


def measure(
    cases: list[Case],
    limit_s: float,
    budget_s: float,
    work: Work,
    environment: Mapping[str, str] = GROWING_SEGMENTS,
) -> None:
    """Print a row for each case.

    Args:
        cases: In the order of the rows; others of the same shape are compared with the first.
        limit_s: Of a row.
        budget_s: No row begins after it.
        work: Measures a case.
        environment: Of ours; stock has none of its own.
    """
    children = [Child(work, case, environment={} if case.is_stock else environment)
                for case in cases]  # fmt: skip
    print(f"{'case':12} {'what':8} {'ms/micro':>9} {'tokens/s':>9} {'GiB alloc':>9} "
          f"{'reserved':>9} {'ratio':>6}  notes", flush=True)  # fmt: skip
    baselines: dict[str, float] = {}
    for case, row in zip(cases, in_turn(children, limit_s, budget_s), strict=True):
        if "failed" not in row:
            baselines.setdefault(case.place, row["tokens_per_s"])
        show(case.place, case.what, row, baselines.get(case.place))


def show(place: str, what: str, row: dict[str, Any], baseline: float | None) -> None:
    """Print a row of the table."""
    if "failed" in row:
        print(f"{place:12} {what:8} {row['failed']}; {row.get('took', '')}", flush=True)
        return
    ratio = row["tokens_per_s"] / (baseline or row["tokens_per_s"])
    print(f"{place:12} {what:8} {row['ms']:9.1f} {row['tokens_per_s']:9.0f} "
          f"{row['allocated']:9.3f} {row['reserved']:9.3f} {ratio:5.1f}x  {row['notes']}; "
          f"{row['took']}", flush=True)  # fmt: skip


def _measured(case: Case) -> dict[str, Any]:
    return measured(case, stock if case.is_stock else ours)


def measured(case: Case, train: Callable[[Case, Peaks], dict[str, Any]]) -> dict[str, Any]:
    """Train, and add the peaks of memory."""
    from .random_models import GIB, Peaks

    peaks = Peaks(case.device)
    row = train(case, peaks)
    peaks.gather()
    notes = "; ".join([*row.pop("notes", []), *peaks.notes])
    return row | {
        "allocated": peaks.allocated / GIB,
        "reserved": peaks.reserved / GIB,
        "notes": notes,
    }


def summary(ends: list[float], length: int) -> dict[str, Any]:
    """From the times at which steps ended."""
    took = [after - before for before, after in itertools.pairwise(ends)][WARM_STEPS:]
    step_s = statistics.median(took)
    return {"ms": step_s / ACCUMULATE * 1e3, "tokens_per_s": ACCUMULATE * length / step_s}


def stock(case: Case, peaks: Peaks) -> dict[str, Any]:
    """TRL's trainer with its defaults."""
    import torch
    from datasets import Dataset
    from datasets.table import InMemoryTable
    from peft import LoraConfig
    from transformers import TrainerCallback
    from trl import SFTConfig, SFTTrainer

    from tests.support.tiny import byte_tokenizer

    on_gpu = case.device == "cuda"
    tokenizer = byte_tokenizer()
    model = stock_model(case, peaks)
    steps = case.steps + WARM_STEPS + 1
    rows = [tokenizer(text(case.length, number))["input_ids"][: case.length]
            for number in range(steps * ACCUMULATE)]  # fmt: skip
    # With its fingerprint given: computing one fails on some pairs of Python and pyarrow.
    table = InMemoryTable.from_pydict({"input_ids": rows, "labels": rows})
    ends: list[float] = []

    class Watch(TrainerCallback):  # type: ignore[misc]  # transformers is untyped
        def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
            peaks.begin()

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
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return summary(ends, case.length) | {"notes": [said_losses(losses)]}


def stock_model(case: Case, peaks: Peaks) -> Any:
    """The quantized model, as users of TRL load it."""
    import torch
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    from tests.support.shapes import random_llama
    from tests.support.tiny import byte_tokenizer

    dtype = torch.bfloat16 if case.device == "cuda" else torch.float32
    peaks.begin()
    if case.model is None:
        return random_llama(case.shape, byte_tokenizer(), case.device, nf4=True, dtype=dtype)
    nf4 = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=dtype,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_pretrained(
        case.model, dtype=dtype, device_map={"": case.device}, quantization_config=nf4
    )
    peaks.note_loading("loading")
    return model


def said_losses(losses: list[float]) -> str:
    """The first of them, to compare rows by."""
    return "losses " + " ".join(f"{loss:.4f}" for loss in losses[:3])


def text(length: int, number: int) -> str:
    """At least `length` tokens of the byte-level tokenizer."""
    return " ".join(f"{number * 7 + i:04d}" for i in range(length // 4))


def ours(
    case: Case, peaks: Peaks, change: Callable[[Any], None] = lambda loaded: None
) -> dict[str, Any]:
    """A whole run of ours: session, journal, guard, detector.

    Args:
        case: `what` beginning with bare leaves layers as they are, plain is without fast mode.
        peaks: Of the training.
        change: Done to the loaded model before the trainer is made.
    """
    import fttui.engine.train.session as session
    from fttui.engine.train.cuda_graphs import static_forward

    from .random_models import counted_loader

    loaded_at = 0.0

    def loaded(found: Any) -> None:
        nonlocal loaded_at
        change(found)
        loaded_at = time.time()

    if case.what.startswith("bare"):
        vars(static_forward)["fuse"] = lambda model, kernels: []
    vars(session)["load_model"] = counted_loader(
        case.shape, peaks, from_disk=case.model is not None, loaded=loaded
    )
    with tempfile.TemporaryDirectory() as folder:
        ends, notes = _play(case, Path(folder))
    notes.append(f"first step after {ends[0] - loaded_at:.1f} s")
    return summary(ends, case.length) | {"notes": notes}


def _play(case: Case, folder: Path) -> tuple[list[float], list[str]]:
    from fttui.engine.config.load import load_config
    from fttui.engine.protocol.events import LogEmitted, RunStarted, StepFinished
    from fttui.engine.run.run_dir import create_run
    from tests.support.training import play

    steps = case.steps + WARM_STEPS + 2
    data = folder / "texts.jsonl"
    rows = ({"text": text(case.length, number)} for number in range(steps * ACCUMULATE))
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    fast = "off" if case.what.startswith("plain") else "on" if case.device == "cuda" else "static"
    config = folder / "speed.yaml"
    config.write_text(
        f"""
name: speed
task: sft
model: {{id: {case.model or "random"}, quantize: nf4}}
adapter: {{dropout: {DROPOUT}}}
data: {{train: {data}, max_length: {case.length}, eval_fraction: 0, accept: [all]}}
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
    facts, steps_done = played.events(RunStarted)[-1].facts, played.events(StepFinished)
    said = [e.text for e in played.events(LogEmitted) if e.level != "info"]
    held = max(step.mem_reserved_bytes or 0 for step in steps_done)
    notes = [facts["fast mode"], facts.get("memory of a step", ""), *said,
             said_losses([step.loss_or_nan for step in steps_done]),
             f"{held / 2**30:.3f} GiB reserved between steps"]  # fmt: skip
    # A step is journaled while the next one runs, but for the last.
    ends = [r.time for r in played.records if isinstance(r.event, StepFinished)][:-1]
    return ends, [note for note in notes if note]


if __name__ == "__main__":
    main()
