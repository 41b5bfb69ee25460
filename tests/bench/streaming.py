"""Streamed mode: what it computes against lean mode, what it takes, and how fast it is.

    python -m tests.bench.streaming [--only exact 8b 14b 32b] [--limit-s S] [--budget-s S]

The rows `exact` are whole runs of the same random model in lean and in streamed mode, from disk
through the real loader; losses and trained weights must be equal to the last bit. The other rows
are runs on random models of the shapes of `tests.bench.cards`, one after another: lean mode without
a limit, and streamed mode in a process that may take no more than the card has, its context
included. Needs a CUDA device; `--device cpu` only tries the script out.
"""

from __future__ import annotations

import argparse
import hashlib
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .cards import DRIVER_GIB
from .children import GROWING_SEGMENTS, Child
from .memory_cases import BF16, ON, Case

PAGED = {"train.optimizer": "paged_adamw_8bit", "train.fast": "off"}
LEAN = BF16 | ON | PAGED | {"train.memory": "lean"}
STREAMED = BF16 | ON | PAGED | {"train.memory": "streamed"}
ON_HOST = {"train.activations": "host"}
SMALL_GIB = 3.5
ROWS: tuple[Case, ...] = (
    Case("8b lean", "8b", 2048, 1, LEAN, alone=True),
    Case("8b lean, graphs", "8b", 2048, 1, LEAN | {"train.fast": "on"}, alone=True),
    Case("8b streamed", "8b", 2048, 1, STREAMED, cap_gib=SMALL_GIB, alone=True),
    Case("8b streamed, host", "8b", 2048, 1, STREAMED | ON_HOST, cap_gib=SMALL_GIB, alone=True),
    Case("14b lean", "14b", 2048, 1, LEAN, alone=True),
    Case("14b streamed", "14b", 2048, 1, STREAMED, cap_gib=8 - DRIVER_GIB, alone=True),
    Case("14b streamed, 4096", "14b", 4096, 1, STREAMED, cap_gib=8 - DRIVER_GIB, alone=True),
    Case("32b lean", "32b", 2048, 1, LEAN, alone=True),
    Case("32b streamed", "32b", 2048, 1, STREAMED, cap_gib=16 - DRIVER_GIB, alone=True),
    Case("32b streamed, 4096", "32b", 4096, 1, STREAMED, cap_gib=16 - DRIVER_GIB, alone=True),
    Case("8b streamed, batch 4", "8b", 2048, 4, STREAMED, cap_gib=8 - DRIVER_GIB, alone=True),
)
EXACT = {"tiny": 256, "1b": 512}
"""Shapes of the models that are compared, each with the length of its sequences."""


def main(words: Sequence[str] | None = None) -> None:
    """Compare, measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only", nargs="+", default=[""], help="beginnings of names; exact")
    parser.add_argument("--limit-s", type=float, default=180.0, help="of a row")
    parser.add_argument("--budget-s", type=float, default=540.0, help="no row begins after it")
    parser.add_argument("--shape", help="of all rows, to try the script out")
    parser.add_argument("--length", type=int, help="of all rows, to try the script out")
    options = parser.parse_args(words)
    ends_s = time.monotonic() + options.budget_s
    if "exact".startswith(tuple(options.only)):
        for shape, length in EXACT.items() if options.shape is None else {"tiny": 64}.items():
            compare(shape, length, options)
    print(f"{'run':22} {'T':>5} {'batch':>5} {'ms/step':>8} {'tokens/s':>9} {'planned':>8} "
          f"{'measured':>8} {'error':>6} {'reserved':>8} {'all-in':>7} {'held to':>7}")  # fmt: skip
    for case in [one for one in ROWS if one.name.startswith(tuple(options.only))]:
        if time.monotonic() > ends_s:
            print(f"{case.name:22} left out: the time is up", flush=True)
        else:
            show(case, measure(case, options))


def measure(case: Case, options: argparse.Namespace) -> dict[str, Any]:
    """Return the row of one run, in a process of its own."""
    shape, length = options.shape or case.shape, options.length or case.length
    child = Child(_measured, case, options.device, shape, length, environment=GROWING_SEGMENTS)
    return child.measure(options.limit_s) | {"length": length}


def show(case: Case, row: dict[str, Any]) -> None:
    """Print one row and its notes."""
    if "failed" in row:
        print(f"{case.name:22} failed: {row['failed']}; {row['took']}", flush=True)
        return
    step_ms = row["ms"] * case.accumulate
    tokens = 1e3 * row["length"] * case.batch / row["ms"]
    held = f"{case.cap_gib:.1f}" if case.cap_gib else "–"
    print(f"{case.name:22} {row['length']:5} {case.batch:5} {step_ms:8.0f} {tokens:9,.0f} "
          f"{row['estimate']:8.3f} {row['measured']:8.3f} {row['signed']:+6.1%} "
          f"{row['reserved']:8.3f} {row['device']:7.3f} {held:>7}", flush=True)  # fmt: skip
    print(f"    {row['notes']}; {row['took']}", flush=True)


def _measured(case: Case, device: str, shape: str, length: int) -> dict[str, Any]:
    from .memory_row import measured

    with tempfile.TemporaryDirectory() as folder:
        return measured(case, device, shape, length, Path(folder))


def compare(shape: str, length: int, options: argparse.Namespace) -> None:
    """Run one model in lean and in streamed mode, and say whether all numbers are the same."""
    straight: dict[int, list[str]] = {}
    plans = {
        "lean": (LEAN, straight),
        "streamed": (STREAMED, straight),
        "streamed, host": (STREAMED | ON_HOST, straight),
        "streamed, released": (STREAMED, {1: ["pause release", "resume"], 2: ["eval"]}),
    }
    found: dict[str, dict[str, Any]] = {}
    for name, (sets, commands) in plans.items():
        child = Child(_trained, shape, length, sets | {"train.deterministic": "true"}, commands,
                      options.device, environment=GROWING_SEGMENTS)  # fmt: skip
        row = found[name] = child.measure(options.limit_s)
        if "failed" in row:
            print(f"exact {shape}: {name} failed: {row['failed']}", flush=True)
            continue
        same = all(row[key] == found["lean"].get(key) for key in ("losses", "weights"))
        print(f"exact {shape} T {length}: {name:20} equal to lean: {'yes' if same else 'NO'}; "
              f"losses {[round(one, 4) for one in row['losses']]}; weights {row['weights']}; "
              f"{row['memory']}; {row['took']}", flush=True)  # fmt: skip


def _trained(
    shape: str, length: int, sets: dict[str, str], commands: dict[int, list[str]], device: str
) -> dict[str, Any]:
    """Play a run; return its losses, a digest of its trained weights, and its memory mode."""
    import torch

    from fttui.engine.protocol.events import RunStarted, StepFinished
    from tests.support.training import Script, play

    from .memory_row import new_run, use_model
    from .random_models import Peaks

    case = Case("exact", shape, length, 1, sets, loaded=True)
    models: list[Any] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        use_model(case, device, shape, folder, Peaks(device), models.append)
        _, run = new_run(case, device, length, folder)
        played = play(run, Script(commands), device=device)
    digest = hashlib.sha256()
    for weight in models[0].model.parameters():
        if weight.requires_grad:
            digest.update(weight.detach().float().cpu().numpy().tobytes())
    loading = torch.cuda.max_memory_reserved() / 2**30 if device == "cuda" else 0.0
    return {
        "losses": [step.loss for step in played.events(StepFinished)],
        "weights": digest.hexdigest()[:12],
        "memory": f"{played.events(RunStarted)[-1].facts['memory']}; {loading:.2f} GiB reserved",
    }


if __name__ == "__main__":
    main()
