"""One row of `tests.bench.memory`: a run is played and its memory read."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import fttui.engine.train.session as session
from fttui.engine.config.load import load_config
from fttui.engine.config.memory.estimate import (
    MemoryEstimate,
    estimate_memory,
    read_architecture,
)
from fttui.engine.errors import ModelError
from fttui.engine.protocol.events import LogEmitted, RunStarted, StepFinished
from fttui.engine.run.run_dir import create_run
from tests.support.training import Script, play

from .random_models import GIB, Peaks, counted_loader, shape_of, write_model

if TYPE_CHECKING:
    from .memory_cases import Case

STEPS = 4
CONTEXT_BYTES = int(0.88 * GIB)
"""What the context of such a run has grown to at its end, on this generation of cards."""


def measured(case: Case, device: str, shape: str, length: int, folder: Path) -> dict[str, Any]:
    """Play a run and compare."""
    peaks = Peaks(device)
    if case.pooled and device == "cuda":
        rehearse_in_the_pool()
    use_model(case, device, shape, folder, peaks)
    config, run = new_run(case, device, length, folder)
    played = play(run, Script(calls={STEPS - 1: peaks.look}), device=device)
    steps = played.events(StepFinished)
    step_peak = max(step.mem_allocated_bytes or 0 for step in steps[1:])
    estimate = planned(case, config, shape, device)
    facts = played.events(RunStarted)[-1].facts
    fast = not facts["fast mode"].startswith("off")
    # A graph's memory is no longer allocated between steps, but it stays reserved.
    held = max(step.mem_reserved_bytes or 0 for step in steps)
    compared = held if fast else step_peak
    expected = 0
    if estimate is not None:
        expected = estimate.reserved if fast else estimate.allocated
    signed = expected / compared - 1 if compared and expected else 0.0
    # Graphs are only put in the queue, so that a part of a step does not show what they take.
    late = [step.step_s for step in steps[2:]]
    notes = [*peaks.notes, facts["fast mode"], facts.get("memory of a step", "")]
    notes += [event.text for event in played.events(LogEmitted) if event.level != "info"]
    notes.append(f"loss {steps[0].loss:.3f} -> {steps[-1].loss:.3f}")
    found = estimate.terms() if estimate is not None else {}
    terms = {name: round(count / GIB, 3) for name, count in found.items()}
    if peaks.reserved > 1.02 * held:
        notes.append(f"while capturing {peaks.reserved / GIB:.3f}")
    print(f"  {case.name}: planned {terms}; step peak {step_peak / GIB:.3f}", flush=True)
    return {
        "estimate": expected / GIB,
        "measured": compared / GIB,
        "signed": signed,
        **({"error": abs(signed)} if compared and expected else {}),
        "reserved": peaks.reserved / GIB,
        "device": (peaks.reserved + (peaks.context if case.alone else CONTEXT_BYTES)) / GIB,
        "ms": statistics.median(late) / case.accumulate * 1e3,
        "notes": "; ".join(note for note in notes if note),
    }


def planned(case: Case, config: Any, shape: str, device: str) -> MemoryEstimate | None:
    """Return the estimate of a row; None if the memory of its model is not planned."""
    try:
        architecture = read_architecture(shape_of(shape, case.layers))
    except ModelError:
        return None
    return estimate_memory(config, architecture, "cuda" if device == "cuda" else "cpu")


def use_model(
    case: Case,
    device: str,
    shape: str,
    folder: Path,
    peaks: Peaks,
    seen: Callable[[Any], None] = lambda found: None,
) -> None:
    """Let the session load a random model, or put it on disk for the real loader.

    `seen` gets the loaded model.
    """

    def loaded(found: Any) -> None:
        hold_to_cap(case, device)
        seen(found)

    vars(session)["load_model"] = counted_loader(shape, peaks, from_disk=case.loaded, loaded=loaded)
    if case.loaded:
        write_model(shape, folder / "model", device, case.layers)


def rehearse_in_the_pool() -> None:
    """Try what it saves when a rehearsal takes the memory of the graphs instead of its own."""
    from fttui.engine.train.cuda_graphs.graph_pass import Captured

    rehearse = Captured._rehearse

    def pooled(self: Any, program: Any, graphs: Any) -> None:
        torch._C._cuda_beginAllocateToPool(self._device.index, graphs.pool)
        try:
            rehearse(self, program, graphs)
        finally:
            torch._C._cuda_endAllocateToPool(self._device.index, graphs.pool)

    vars_of: Any = Captured
    vars_of._rehearse = pooled


def hold_to_cap(case: Case, device: str) -> None:
    """From here on this process may take no more than the cap, context included."""
    if case.cap_gib and device == "cuda":
        free, total = torch.cuda.mem_get_info()
        # The context still grows as kernels are loaded. Rows that share the device see each other.
        own = total - free - torch.cuda.memory_reserved() if case.alone else 0
        context = max(own, CONTEXT_BYTES)
        most = int(case.cap_gib * GIB - context)
        torch.cuda.set_per_process_memory_fraction(most / total)
        vars(torch.cuda)["mem_get_info"] = partial(_left, most)


def _left(most: int, device: object = None) -> tuple[int, int]:
    """Return the free and the whole memory of a card of which this process has `most` bytes."""
    return max(0, most - torch.cuda.memory_reserved()), most


def new_run(case: Case, device: str, length: int, folder: Path) -> tuple[Any, Any]:
    """A run of a few steps on texts longer than the length."""
    data = folder / "rows.jsonl"
    rows = [row_of(case, length, number) for number in range(6 * case.accumulate * case.batch + 8)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = folder / "memory.yaml"
    kind = "infonce, hard_negatives: 0" if case.task == "contrastive" else '"off"'
    config.write_text(
        f"""
name: memory
task: {case.task}
model: {{id: {folder / "model"}, quantize: nf4}}
adapter: {{dropout: 0}}
data: {{train: {data}, max_length: {length}, eval_fraction: 0.01, accept: [all]}}
contrastive: {{kind: {kind}}}
train: {{steps: {STEPS}, batch: {case.batch}, accumulate: {case.accumulate}, fast: "off"}}
checkpoint: {{every: 0, at_start: false}}
"""
    )
    sets = [f"{key}={value}" for key, value in case.sets.items()]
    if device != "cuda":
        sets = ["train.fast=static" if entry == "train.fast=on" else entry for entry in sets]
    read = load_config(config, sets)
    run = create_run(folder / "runs", name="memory", config=config, source=read.source,
                     resolved=read.resolved, overrides=sets, version="0")  # fmt: skip
    return read.config, run


def row_of(case: Case, length: int, number: int) -> dict[str, Any]:
    """A record whose texts are cut at the length."""
    share = (0.3, 0.5, 0.7, 1.0)[number % 4] if case.varied else 1.2
    text, other = (words(int(length * share), number + i) for i in (0, 1))
    few = words(max(8, length // 8), number)
    if case.task == "contrastive":
        return {"anchor": text, "positive": other}
    if case.task == "dpo":
        return {"prompt": few, "chosen": text, "rejected": other}
    if case.task == "kto":
        return {"prompt": few, "completion": text, "label": number % 2 == 0}
    return {"text": text}


def words(length: int, number: int) -> str:
    """At least `length` tokens of the byte-level tokenizer."""
    return " ".join(f"{number * 7 + i:04d}" for i in range(length // 4))
