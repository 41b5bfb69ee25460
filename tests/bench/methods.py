"""Every method and every optimizer through the engine on a device: a few steps with a rollback.

    python -m tests.bench.methods [--device cuda|cpu] [--only WORD] [--fast auto|on|off|static]

Trains a tiny model on records that are made here, a few seconds for each row; nothing is
downloaded. A row says whether every loss and norm is finite, whether the steps after a rollback
have the losses and norms of the first time to the last bit, and whether CUDA graphs were used or
why not. The exit code is 1 if a row fails. Paged optimizers need a GPU.
"""

from __future__ import annotations

import argparse
import logging
import math
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from fttui.engine.config.sections.optimizers import OPTIMIZERS
from fttui.engine.config.tasks import PAIR_LOSSES
from fttui.engine.protocol.events import RunStarted, StepFinished
from tests.support.training import Played, Script, new_run, play

STEPS, BACK_AT, BACK_TO = 8, 7, 3
"""Steps of a run, and the step after which it goes back, and to which one."""
WHOLE: dict[str, Any] = {"adapter__kind": "none", "adapter__dropout": 0, "train__layers": 1}
OF_LOSSES: dict[str, dict[str, Any]] = {"exo_pair": {"preference__label_smoothing": 0.001}}
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "sft": ("sft", {}),
    "sft, packing": ("sft", {"data__packing": True}),
    "sft, focal": ("sft", {"train__focal": 2}),
    "sft, label smoothing": ("sft", {"train__label_smoothing": 0.1}),
    "sft, NEFTune": ("sft", {"train__neftune": 5}),
    "sft, NF4": ("sft", {"model__quantize": "nf4"}),
    "sft, all weights": ("sft", WHOLE),
    "sft, simctg": ("sft", {"contrastive__kind": "simctg"}),
    "contrastive, infonce": ("contrastive", {}),
    "contrastive, GradCache": ("contrastive", {"contrastive__cross_accumulation": "on"}),
    "contrastive, learned temperature": ("contrastive", {"contrastive__learn_temperature": True}),
    "contrastive, pairwise": ("contrastive", {"contrastive__kind": "pairwise"}),
    "contrastive, triplet": ("contrastive", {"contrastive__kind": "triplet"}),
    "contrastive, dimensions": ("contrastive", {"contrastive__dimensions": "[8, 16]"}),
    "contrastive, cosent": ("contrastive", {"contrastive__kind": "cosent"}),
    "contrastive, cosine": (
        "contrastive",
        {"contrastive__kind": "cosine", "contrastive__score_range": "[0, 5]"},
    ),
    **{
        f"dpo, {loss}": ("dpo", {"preference__loss": loss, **OF_LOSSES.get(loss, {})})
        for loss in PAIR_LOSSES
    },
    "dpo, forward_kl": ("dpo", {"preference__f_divergence": "forward_kl"}),
    "dpo, ld_alpha": ("dpo", {"preference__ld_alpha": 0.5}),
    "kto": ("kto", {}),
    "kto, apo_zero_unpaired": ("kto", {"preference__rated_loss": "apo_zero_unpaired"}),
    "reward": ("reward", {}),
}
PROJECTED = {**WHOLE, "train__projection__rank": 4, "train__projection__every": 3}
OF_OPTIMIZERS: dict[str, dict[str, Any]] = {
    "galore": PROJECTED,
    "apollo": PROJECTED,
    "sophia": {"train__sophia__every": 3},
}
"""Settings beside the name of an optimizer."""
SAM: dict[str, tuple[str, dict[str, Any]]] = {
    "sam, ASAM over lion": ("sft", {"train__sam__adaptive": True, "train__sam__base": "lion"}),
    "sam, GradCache": ("contrastive", {"contrastive__cross_accumulation": "on"}),
    "sam, dpo": ("dpo", {}),
    "sam, NF4": ("sft", {"model__quantize": "nf4"}),
}


class Row(NamedTuple):
    """What a run has shown."""

    losses: str
    finite: bool
    exact: bool
    graphs: str


def cases() -> dict[str, tuple[str, dict[str, Any]]]:
    """Return task and settings of every row by its name."""
    optimizers = {
        f"optimizer {name}": ("sft", {"train__optimizer": name, **OF_OPTIMIZERS.get(name, {})})
        for name in OPTIMIZERS
    }
    sam = {
        f"optimizer {name}": (task, {"train__optimizer": "sam", **sets})
        for name, (task, sets) in SAM.items()
    }
    return {**METHODS, **optimizers, **sam}


def measured(folder: Path, task: str, sets: dict[str, Any], device: str, fast: str) -> Row:
    """Train a run that goes back once, and compare its steps."""
    asked: dict[str, Any] = {
        "train__steps": STEPS, "train__fast": fast, "train__deterministic": "true",
        "checkpoint__every": BACK_TO, "eval__at_start": False, "data__eval_fraction": 0,
        **sets,
    }  # fmt: skip
    script = Script(commands={BACK_AT: [f"rollback {BACK_TO}"]})
    return seen(play(new_run(folder, task, **asked), script, device=device))


def seen(played: Played) -> Row:
    """Return the row of a run: its losses, and whether both timelines agree."""
    steps = [r for r in played.records if isinstance(r.event, StepFinished)]
    figures: dict[int, dict[int, tuple[float, float]]] = {1: {}, 2: {}}
    for record in steps:
        event = record.event
        assert isinstance(event, StepFinished)
        pair = math.nan if event.loss is None else event.loss, event.grad_norm or 0.0
        figures[record.timeline][record.step] = pair
    first, second = figures[1], figures[2]
    both = sorted(first.keys() & second.keys())
    exact = len(both) == BACK_AT - BACK_TO and all(first[n] == second[n] for n in both)
    values = [value for one in figures.values() for pair in one.values() for value in pair]
    facts = [event.facts for event in played.events(RunStarted) if event.facts]
    return Row(
        losses=f"{first[1][0]:.4f} to {second[STEPS][0]:.4f}",
        finite=len(second) == STEPS - BACK_TO and all(math.isfinite(one) for one in values),
        exact=exact,
        graphs=facts[-1]["fast mode"] if facts else "not said",
    )


def main() -> int:
    """Print a row for every method and optimizer; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only", default="", help="rows with this in their name")
    parser.add_argument("--fast", default="auto")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    print(
        f"{'method':34} {'loss':20} {'finite':7} {'rollback':9} {'s':>5}  CUDA graphs", flush=True
    )
    failed = []
    for name, (task, sets) in cases().items():
        if options.only not in name:
            continue
        started = time.perf_counter()
        try:
            with tempfile.TemporaryDirectory() as folder:
                row = measured(Path(folder), task, sets, options.device, options.fast)
        except Exception as error:  # noqa: BLE001 -- the next row is of another method
            row = Row("failed", False, False, f"{type(error).__name__}: {error}".splitlines()[0])
        if not (row.finite and row.exact):
            failed.append(name)
        took = time.perf_counter() - started
        print(
            f"{name:34} {row.losses:20} {_yes(row.finite):7} {_exact(row.exact):9} {took:5.1f}  "
            f"{row.graphs}",
            flush=True,
        )
    print(f"{len(failed)} failed: {', '.join(failed)}" if failed else "all rows hold")
    return 1 if failed else 0


def _yes(value: bool) -> str:
    return "yes" if value else "NO"


def _exact(value: bool) -> str:
    return "exact" if value else "NOT"


if __name__ == "__main__":
    sys.exit(main())
