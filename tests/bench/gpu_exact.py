"""Exactness on a GPU: optimizer states, paged buffers, memory of rollbacks, whole runs.

    python -m tests.bench.gpu_exact

Needs a CUDA device and nothing else. Prints tables; every `exact` must be yes.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from fttui.engine.protocol.states import RunState
from tests.support.optimizers import Make, Trained, goes_back, goes_on, makers

ROLLBACKS = 20
DEEP = 7
"""Layers of the models of streamed runs, more than there are slots."""
LEAN = {"train__memory": "lean", "model__quantize": "nf4", "train__optimizer": "paged_adamw_8bit"}
STREAMED = {**LEAN, "train__memory": "streamed"}


def main() -> None:
    """Print every table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only-runs", nargs="?", const="", help="those with this in their name")
    options = parser.parse_args()
    if options.only_runs is not None:
        with tempfile.TemporaryDirectory() as folder:
            late(Path(folder))
            changes(Path(folder))
            runs(Path(folder), options.only_runs)
        return
    optimizers()
    paged()
    memory()
    with tempfile.TemporaryDirectory() as folder:
        late(Path(folder))
        changes(Path(folder))
        runs(Path(folder))


def _yes(value: bool) -> str:
    return "yes" if value else "NO"


def optimizers(device: str = "cuda") -> dict[str, bool]:
    """Save → load → step against no-save, in place and in a new optimizer, fp32 and bf16."""
    print(f"{'optimizer':22} {'weights':10} {'rollback exact':16} {'to step 0':12} resume exact")
    found: dict[str, bool] = {}
    for name, make in makers().items():
        for dtype in (torch.float32, torch.bfloat16):
            row = (
                goes_back(make, 3, device, dtype),
                goes_back(make, 0, device, dtype),
                goes_on(make, 3, device, dtype),
            )
            found[f"{name}, {dtype}"] = all(row)
            kind = str(dtype).removeprefix("torch.")
            print(f"{name:22} {kind:10} {_yes(row[0]):16} {_yes(row[1]):12} {_yes(row[2])}")
    return found


def paged() -> dict[str, bool]:
    """Paged buffers stay paged and where they are, after a rollback and in a new optimizer."""
    make = makers()["paged_adamw_8bit"]
    one = Trained(make, "cuda").train(0, 1)
    saved, before = one.save(), one.addresses()
    found = {
        "paged before": _is_paged(one),
        "paged after a rollback": _is_paged(one.train(2).load(saved)),
        "same buffers": one.addresses() == before,
        "paged after a resume": _is_paged(Trained(make, "cuda").load(saved)),
    }
    for name, value in found.items():
        print(f"{name:40} {_yes(value)}")
    return found


def _is_paged(one: Trained) -> bool:
    state = one.optimizer.state[one.weights[0]]
    return all(getattr(state[name], "is_paged", False) for name in ("state1", "state2"))


def memory() -> dict[str, int]:
    """Peak allocated of the last rollback above the first; torch's own loader beside it."""
    found: dict[str, int] = {}
    print(f"{'optimizer':22} {'growth, bytes':>16} {'peak over state':>18} {'torch loader':>16}")
    for name, make in makers().items():
        first, last = _peaks(make, ROLLBACKS)
        found[name] = last - first
        print(f"{name:22} {last - first:16,} {first:18,} {_loader_peak(make):16,}")
    return found


def _peaks(make: Make, count: int) -> tuple[int, int]:
    """Peak allocated above what is held before it, of the first and the last rollback."""
    one = Trained(make, "cuda").train(0, 1)
    saved = one.save()
    held = torch.cuda.memory_allocated()
    peaks: list[int] = []
    for _ in range(count):
        torch.cuda.reset_peak_memory_stats()
        one.load(saved)
        peaks.append(torch.cuda.max_memory_allocated() - held)
    return peaks[0], peaks[-1]


def _loader_peak(make: Make) -> int:
    one = Trained(make, "cuda").train(0, 1)
    state = one.optimizer.state_dict()
    torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated()
    one.optimizer.load_state_dict(state)
    return torch.cuda.max_memory_allocated() - held


def runs(folder: Path, only: str = "") -> dict[str, bool]:
    """Whole tiny runs with deterministic kernels: rolled back and resumed against straight."""
    from fttui.engine.train.loop.optimizer_kinds import OWN
    from tests.support.tiny import tiny_llama
    from tests.support.training import Script, new_run, play

    found: dict[str, bool] = {}
    kinds: dict[str, tuple[str, dict[str, Any]]] = {
        "contrastive, ema": ("contrastive", {"train__ema": 0.9}),
        "sft, paged 8-bit": ("sft", {"train__optimizer": "paged_adamw_8bit"}),
        "packed, ema": (
            "sft",
            {"data__packing": "true", "data__max_length": 96, "train__batch": 2, "train__ema": 0.9},
        ),
        "sft, graphs": ("sft", {"train__fast": "on", "data__max_length": 96}),
        "sft, graphs, nf4, 8-bit": (
            "sft",
            {"train__fast": "on", "model__quantize": "nf4", "train__optimizer": "adamw_8bit"},
        ),
        "sft, graphs, fp16": (
            "sft",
            {"train__fast": "on", "model__precision": "fp16", "model__quantize": "nf4"},
        ),
        "contrastive, graphs": ("contrastive", {"train__fast": "on"}),
        "contrastive, graphs, fp16": (
            "contrastive",
            {"train__fast": "on", "model__precision": "fp16"},
        ),
        "sft, noise, smoothing, graphs": (
            "sft",
            {"train__fast": "on", "train__neftune": 5.0, "train__label_smoothing": 0.1},
        ),
        "dpo, graphs": ("dpo", {"train__fast": "on"}),
        "dpo, graphs, nf4, 8-bit": (
            "dpo",
            {"train__fast": "on", "model__quantize": "nf4", "train__optimizer": "adamw_8bit"},
        ),
        "kto, graphs": ("kto", {"train__fast": "on"}),
        "sft, graphs, lean": ("sft", {"train__fast": "on", **LEAN}),
        "sft, graphs, lean, packed": (
            "sft",
            {"train__fast": "on", **LEAN, "data__packing": "true", "data__max_length": 96},
        ),
        "sft, streamed": ("sft", STREAMED),
        "dpo, streamed, activations on the host": (
            "dpo",
            {
                **STREAMED,
                "train__activation_checkpointing": "true",
                "train__activations": "host",
            },
        ),
        "contrastive, graphs, lean": ("contrastive", {"train__fast": "on", **LEAN}),
        "dpo, graphs, lean": ("dpo", {"train__fast": "on", **LEAN}),
        "kto, graphs, lean": ("kto", {"train__fast": "on", **LEAN}),
        **{
            f"sft, graphs, {name}": ("sft", {"train__fast": "on", "train__optimizer": name})
            for name in sorted({*OWN} - {"galore", "apollo"})  # these two train whole matrices
        },
    }
    for name, (task, sets) in kinds.items():
        if only not in name:
            continue
        places = [folder / f"{name.replace(', ', '-').replace(' ', '-')}-{i}" for i in range(4)]
        for place in places:
            place.mkdir()
        if "streamed" in name:
            deep = [{"model__id": str(tiny_llama(place, layers=DEEP))} for place in places]
        else:
            deep = [{} for _ in places]
        made = [
            new_run(p, task, train__deterministic="true", **sets, **own)
            for p, own in zip(places, deep, strict=True)
        ]
        first = play(made[0], device="cuda")
        straight = first.losses()
        back = play(made[1], Script({6: ["rollback 4"]}), device="cuda").losses()
        play(made[2], Script({3: ["stop"]}), device="cuda")
        resumed = play(made[2], resume="last", device="cuda").losses()
        lent = Script({3: ["pause release"]}, states={RunState.PAUSED: ["resume"]})
        released = play(made[3], lent, device="cuda").losses()
        found[name] = straight == back == resumed == released
        print(
            f"run: {name:27} rollback {_yes(straight == back)}, resume {_yes(straight == resumed)},"
            f" pause release {_yes(straight == released)}",
            flush=True,
        )
        if "graphs" in name:
            print(f"     {_against_the_ordinary_way(folder, name, task, sets)}", flush=True)
        for line in _fast_mode(first):
            print(f"     {line}", flush=True)
    return found


def late(folder: Path) -> dict[str, bool]:
    """Runs whose verdicts are read late against those that wait for each: every record."""
    from fttui.engine.protocol.events import GradientsMeasured, StepFinished
    from fttui.engine.train.loop import hf_bridge
    from fttui.engine.train.loop.update_gate import gate_of
    from fttui.engine.train.trainers.text import TextTrainer
    from tests.support.odd_steps import odd, told
    from tests.support.training import new_run, play

    found: dict[str, bool] = {}
    sets = {"train__fast": "on", "train__deterministic": "true", "train__ema": 0.9}
    for name, factor in {"as ever": 1.0, "a loss that is NaN": math.nan, "a spike": 300.0}.items():
        runs = []
        for way, gate in (("late", gate_of), ("at-once", lambda optimizer: None)):
            place = folder / f"{name.replace(' ', '-')}-{way}"
            place.mkdir()
            with mock.patch.object(hf_bridge, "gate_of", gate), odd(TextTrainer, 5, factor):
                run = new_run(place, "sft", model__quantize="nf4", **sets)
                runs.append(play(run, device="cuda"))
        found[name] = told(runs[0]) == told(runs[1])
        steps = [event.skipped for event in runs[0].events(StepFinished)]
        flows = len(runs[0].events(GradientsMeasured))
        print(f"late verdicts, {name}: records equal {_yes(found[name])}; {len(steps)} steps, "
              f"{sum(steps)} refused, flow measured {flows} times", flush=True)  # fmt: skip
    return found


def changes(folder: Path) -> dict[str, bool]:
    """Weight decay and dropout by commands against a configuration, also with captured graphs."""
    from tests.support.training import Script, new_run, play

    found: dict[str, bool] = {}
    start: dict[str, Any] = {"train__weight_decay": 0, "adapter__dropout": 0}
    wanted: dict[str, Any] = {"train__weight_decay": 3, "adapter__dropout": 0.3}
    for fast in ("on", "off"):
        losses = []
        for name, sets in (("typed", start), ("configured", wanted)):
            place = folder / f"changes-{fast}-{name}"
            place.mkdir()
            own: dict[str, Any] = {"train__fast": fast, "checkpoint__at_start": "true", **sets}
            run = new_run(place, "sft", train__deterministic="true", **own)
            # The steps before the rollback have captured graphs without a dropout.
            typed = {3: ["weight_decay 3", "dropout 0.3", "rollback 0"]} if name == "typed" else {}
            losses.append(play(run, Script(typed), device="cuda").losses())
        found[fast] = losses[0] == losses[1]
        print(f"settings by commands, fast {fast}: as configured {_yes(found[fast])}", flush=True)
    return found


def _against_the_ordinary_way(folder: Path, name: str, task: str, sets: dict[str, Any]) -> str:
    """How far the losses of a run without dropout and noise are from the ordinary way's.

    In fp32, or in the precision that is the point of the run.
    """
    from tests.support.training import new_run, play

    losses = []
    for fast in ("on", "off"):
        place = folder / f"{fast}-{name.replace(', ', '-')}"
        place.mkdir()
        same: dict[str, Any] = {"adapter__dropout": 0.0, "train__neftune": 0.0}
        asked: dict[str, Any] = {"model__precision": "fp32", **sets, **same, "train__fast": fast}
        run = new_run(place, task, train__deterministic="true", **asked)
        losses.append(play(run, device="cuda").losses())
    apart = max(abs(losses[0][step] / losses[1][step] - 1) for step in losses[1])
    precision = asked["model__precision"]
    return f"largest difference of a loss from the ordinary way in {precision}: {apart:.1e}"


def _fast_mode(played: Any) -> list[str]:
    """What a run says of its graphs, where it was to have any."""
    from fttui.engine.protocol.events import LogEmitted, RunStarted

    modes = [event.facts["fast mode"] for event in played.events(RunStarted) if event.facts]
    said = [event.text for event in played.events(LogEmitted) if "fast mode" in event.text]
    return said if modes == ["CUDA graphs"] else [*modes, *said]


if __name__ == "__main__":
    main()
