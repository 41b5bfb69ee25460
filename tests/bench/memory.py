"""What runs really need of a GPU, against the estimate, and how small an 8B gets in lean mode.

    python -m tests.bench.memory [--device cpu] [--only PART] [--limit-s S]

Every row is a whole run of ours (session, journal, guard, detector) on a model with random weights
in a published shape, in a process of its own; rows of the lean table are held to a process total
of 6.0 GiB, context included. Needs a CUDA device; `--device cpu` only tries the script out.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

GIB = 2**30
CAP_BYTES = 6 * GIB
CONTEXT_BYTES = int(0.88 * GIB)
"""What the context of such a run has grown to at its end, on this generation of cards."""
LEAN = {"train.memory": "lean", "train.optimizer": "paged_adamw_8bit"}
BF16 = {"train.adapter_precision": "bf16"}
FP32 = {"train.adapter_precision": "fp32"}
WHOLE = {"train.activation_checkpointing": "false"}
DROP = {"adapter.dropout": "0.05"}


@dataclass(frozen=True)
class Case:
    """One row."""

    table: str
    shape: str
    length: int
    batch: int = 1
    sets: dict[str, str] = field(default_factory=dict)
    capped: bool = False
    accumulate: int = 2
    task: str = "sft"

    def title(self) -> str:
        """Shape, length, batch and what is set."""
        short = [f"{k.rpartition('.')[2]}={v}" for k, v in self.sets.items()]
        return f"{self.shape} {self.task} T{self.length} B{self.batch} {' '.join(short)}"


CASES = (
    Case("lean", "8b", 512, 1, LEAN, capped=True, accumulate=8),
    Case("lean", "8b", 1024, 1, LEAN, capped=True, accumulate=8),
    Case("lean", "8b", 2048, 1, LEAN, capped=True, accumulate=8),
    Case("lean", "8b", 4096, 1, LEAN | {"train.activations": "host"}, capped=True, accumulate=8),
    Case("lean", "8b", 1024, 1, BF16 | {"train.optimizer": "adamw"}, accumulate=4),
    Case("lean", "8b", 2048, 1, BF16 | {"train.optimizer": "adamw"}, accumulate=4),
    Case("load", "1b", 512, 1, LEAN),
    Case("estimate", "0.1b", 1024, 4, FP32 | DROP),
    Case("estimate", "0.1b", 2048, 1, BF16 | WHOLE),
    Case("estimate", "0.5b", 1024, 2, BF16),
    Case("estimate", "0.5b", 512, 4, FP32 | WHOLE | DROP),
    Case("estimate", "1b", 512, 1, BF16 | DROP),
    Case("estimate", "1b", 2048, 1, FP32),
    Case("estimate", "1b", 1024, 2, BF16 | WHOLE),
    Case("estimate", "3b", 1024, 1, BF16),
    Case("estimate", "3b", 2048, 2, FP32 | DROP),
    Case("estimate", "1b", 512, 2, LEAN, task="contrastive"),
)


def main() -> None:
    """Measure the rows one after another; all processes load the training stack at once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only", help="estimate, lean or load")
    parser.add_argument("--limit-s", type=float, default=60.0, help="of a row")
    parser.add_argument("--shape", help="of all rows, to try the script out")
    parser.add_argument("--length", type=int, help="only rows of this length")
    options = parser.parse_args()
    os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")  # as the engine does
    cases = [case for case in CASES if options.only in (None, case.table)]
    cases = [case for case in cases if options.length in (None, case.length)]
    waiting = [Child(case, options.device, options.shape) for case in cases]
    print(f"{'run':62} {'estimate':>8} {'measured':>8} {'error':>6} {'reserved':>8} {'device':>7} "
          f"{'ms/micro':>8}  notes", flush=True)  # fmt: skip
    errors = [row["error"] for row in (c.measure(options.limit_s) for c in waiting) if row]
    if errors:
        print(f"mean |error| {statistics.mean(errors):.1%}, largest {max(errors):.1%}, "
              f"{len(errors)} runs", flush=True)  # fmt: skip


class Child:
    """A process that has imported everything and waits for its turn."""

    def __init__(self, case: Case, device: str, shape: str | None) -> None:
        self._case = case
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        arguments = (case, device, shape or case.shape, theirs)
        self._process = context.Process(target=_wait_and_run, args=arguments, daemon=True)
        self._process.start()
        theirs.close()

    def measure(self, limit_s: float) -> dict[str, Any] | None:
        """Let it measure and print the row; None without an error to count."""
        started = time.monotonic()
        try:
            self._pipe.recv()
            self._pipe.send("go")
            late = {"failed": f"took over {limit_s:.0f} s"}
            found: dict[str, Any] = self._pipe.recv() if self._pipe.poll(limit_s) else late
        except EOFError:
            found = {"failed": "the process died"}
        self._process.kill()
        self._process.join()
        notes = f"{time.monotonic() - started:.0f} s in all"
        show(self._case.title(), found, notes)
        return found if "error" in found else None


def show(title: str, row: dict[str, Any], notes: str) -> None:
    """Print one row of the table."""
    if "failed" in row:
        print(f"{title:62} {row['failed']}", flush=True)
        return
    print(f"{title:62} {row['estimate']:8.3f} {row['measured']:8.3f} {row['signed']:+6.1%} "
          f"{row['reserved']:8.3f} {row['device']:7.3f} {row['ms']:8.0f}  {row['notes']}; {notes}",
          flush=True)  # fmt: skip


def _wait_and_run(case: Case, device: str, shape: str, answer: Any) -> None:
    import trl  # noqa: F401

    import fttui.engine.train.session  # noqa: F401

    answer.send("ready")
    answer.recv()
    try:
        with tempfile.TemporaryDirectory() as folder:
            answer.send(measured(case, device, shape, Path(folder)))
    except Exception as error:  # noqa: BLE001 -- the table says what went wrong
        import traceback

        traceback.print_exc()
        answer.send({"failed": f"{type(error).__name__}: {str(error)[:300]}"})
    sys.stdout.flush()


def measured(case: Case, device: str, shape: str, folder: Path) -> dict[str, Any]:
    """Play a run and compare."""
    import torch

    from fttui.engine.protocol.events import LogEmitted, StepFinished
    from tests.support.training import play

    context = 0
    notes = [used(case, device, shape, folder)]
    config, run = new_run(case, folder)
    played = play(run, device=device)
    steps = played.events(StepFinished)
    late = steps[1:]
    peak = max(step.mem_allocated_bytes or 0 for step in late)
    reserved = torch.cuda.max_memory_reserved() if device == "cuda" else 0
    if device == "cuda":
        free, total = torch.cuda.mem_get_info()
        context = total - free - torch.cuda.memory_reserved()
    estimate = estimated(config, shape, device)
    ms = statistics.median(step.compute_s for step in late) / case.accumulate * 1e3
    notes += [event.text for event in played.events(LogEmitted) if event.level != "info"]
    notes.append(f"loss {steps[0].loss:.3f} -> {steps[-1].loss:.3f}")
    signed = estimate.allocated / max(peak, 1) - 1
    return {
        "estimate": estimate.allocated / GIB,
        "measured": peak / GIB,
        "signed": signed,
        **({"error": abs(signed)} if peak else {}),
        "reserved": reserved / GIB,
        "device": (reserved + context) / GIB,
        "ms": ms,
        "notes": "; ".join(note for note in notes if note),
    }


def hold_to_cap(case: Case) -> None:
    """From here on this process may take no more than the cap, context included."""
    import torch

    torch.cuda.reset_peak_memory_stats()
    if case.capped:
        free, total = torch.cuda.mem_get_info()
        # The context still grows as kernels are loaded.
        context = max(total - free - torch.cuda.memory_reserved(), CONTEXT_BYTES)
        torch.cuda.set_per_process_memory_fraction((CAP_BYTES - context) / total)


def used(case: Case, device: str, shape: str, folder: Path) -> str:
    """Let the session load a random model; `load` puts it on disk and through the real loader."""
    import torch

    import fttui.engine.train.session as session
    from fttui.engine.model.lean import make_lean
    from fttui.engine.model.load import equip, load_model
    from fttui.engine.model.precision import compute_dtype
    from tests.support.shapes import random_llama
    from tests.support.tiny import byte_tokenizer

    tokenizer = byte_tokenizer()
    dtype = compute_dtype("auto", torch.device(device))

    def made(config: Any, place: Any, progress: Any) -> Any:
        base = random_llama(shape, tokenizer, place, nf4=True, dtype=dtype)
        if config.train.memory == "lean":
            make_lean(base, place)
        if place.type == "cuda":
            gc.collect()
            torch.cuda.empty_cache()
            hold_to_cap(case)
        return equip(base, tokenizer, config, place, progress)

    def loaded(config: Any, place: Any, progress: Any) -> Any:
        before = torch.cuda.max_memory_allocated() if place.type == "cuda" else 0
        found = load_model(config, place, progress)
        if place.type == "cuda":
            peak, now = torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated()
            print(f"  load: {before / GIB:.3f} before, peak {peak / GIB:.3f}, then {now / GIB:.3f} "
                  f"GiB; {found.facts['memory']}", flush=True)  # fmt: skip
        return found

    vars(session)["load_model"] = made
    if case.table != "load":
        return ""
    base = random_llama(shape, tokenizer, device, nf4=False, dtype=dtype)
    base.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    del base
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    vars(session)["load_model"] = loaded
    return "through the real loader"


def new_run(case: Case, folder: Path) -> tuple[Any, Any]:
    """A run of three steps on texts longer than the length."""
    from fttui.engine.config.load import load_config
    from fttui.engine.run.layout import create_run

    data = folder / "rows.jsonl"
    rows = [row_of(case, number) for number in range(4 * case.accumulate * case.batch + 4)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = folder / "memory.yaml"
    kind = "infonce, hard_negatives: 0" if case.task == "contrastive" else '"off"'
    config.write_text(
        f"""
name: memory
task: {case.task}
model: {{id: {folder / "model"}, quantize: nf4}}
adapter: {{dropout: 0}}
data: {{train: {data}, max_length: {case.length}, eval_fraction: 0.01}}
contrastive: {{kind: {kind}}}
train: {{steps: 3, batch: {case.batch}, accumulate: {case.accumulate}, fast: "off"}}
checkpoint: {{every: 0, at_start: false}}
"""
    )
    sets = [f"{key}={value}" for key, value in case.sets.items()]
    read = load_config(config, sets)
    run = create_run(folder / "runs", name="memory", config=config, source=read.source,
                     resolved=read.resolved, overrides=sets, version="0")  # fmt: skip
    return read.config, run


def row_of(case: Case, number: int) -> dict[str, str]:
    """A record whose texts are cut at the length."""
    texts = [words(case.length, number), words(case.length, number + 1)]
    if case.task == "contrastive":
        return dict(zip(("anchor", "positive"), texts, strict=True))
    return {"text": texts[0]}


def words(length: int, number: int) -> str:
    """At least `length` tokens of the byte-level tokenizer."""
    return " ".join(f"{number * 7 + i:04d}" for i in range(length // 4))


def estimated(config: Any, shape: str, device: str) -> Any:
    """The prediction for the same run."""
    from fttui.engine.config.memory import estimate_memory, read_architecture
    from tests.support.shapes import SHAPES

    sizes: Iterable[tuple[str, Any]] = SHAPES[shape].items()
    kind: Any = "cuda" if device == "cuda" else "cpu"
    return estimate_memory(config, read_architecture({"model_type": "llama", **dict(sizes)}), kind)


if __name__ == "__main__":
    main()
