"""Which length trains on which card: planned for the card, then run held to its memory.

    python -m tests.bench.cards [--cards 6 8 …] [--models 1b 8b …] [--plan]

For every model and card the longest of `LENGTHS` is taken whose likely estimate fits, with the
settings that `fttui run` would choose there. The run is played on a model of that shape with
random weights, in a process that may take no more memory than the card has, and the row says how
much it took, or that it failed. Streamed weights are planned for the memory of the host of this
machine. `--plan` only plans, for which no GPU is needed. The speed of the card plays no part.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fttui.engine.config.load import load_config
from fttui.engine.config.memory.architecture import read_architecture
from fttui.engine.config.memory.fit import Fit, fit
from fttui.engine.config.memory.hardware import probe_hardware, with_cards

from .memory import Queue
from .memory_cases import Case

GIB = 2**30
CARDS = (6, 8, 12, 16, 24)
"""Sizes of cards in GB, as they are sold."""
DRIVER_GIB = 0.3
"""What the driver of a card without a screen keeps for itself."""
MODELS = ("0.5b", "1b", "3b", "8b", "14b", "32b")
LENGTHS = (8192, 4096, 2048, 1024, 512)
_CONFIG = """
name: card
model: {{id: model, quantize: nf4}}
data: {{train: rows.jsonl, max_length: {length}}}
train: {{steps: 4, batch: 1, accumulate: 2, optimizer: paged_adamw_8bit}}
"""


class Plan(NamedTuple):
    """The longest run of a model that fits on a card."""

    card_gb: int
    shape: str
    length: int
    found: Fit

    @property
    def case(self) -> Case:
        """The row of `tests.bench.memory` that plays it."""
        cap = self.card_gb - DRIVER_GIB
        name = f"{self.card_gb} GB"
        return Case(name, self.shape, self.length, 1, self._sets, cap_gib=cap)

    @property
    def _sets(self) -> dict[str, str]:
        """The settings that the planner has decided."""
        train = self.found.config.train
        return {
            "adapter.dropout": str(self.found.config.adapter.dropout),
            "train.fast": train.fast,
            "train.memory": train.memory,
            "train.activations": train.activations,
            "train.activation_checkpointing": str(train.activation_checkpointing).lower(),
            "train.whole_layers": str(train.whole_layers),
            "train.optimizer": train.optimizer,
        }

    @property
    def way(self) -> str:
        """How the run trains, in a few words."""
        train = self.found.config.train
        words: list[str] = [train.memory] if train.lean else []
        words += ["activations on the host"] if train.activations == "host" else []
        words += ["without graphs"] if train.fast == "off" else []
        return ", ".join(words) or "plain"


def plans(cards: Sequence[int], models: Sequence[str]) -> Iterator[Plan]:
    """Yield the longest run of every model on every card where one fits."""
    from .random_models import shape_of

    here = probe_hardware()
    with tempfile.TemporaryDirectory() as folder:
        for shape in models:
            architecture = read_architecture(shape_of(shape))
            for card in cards:
                machine = with_cards(here, 1, int((card - DRIVER_GIB) * GIB))
                for length in LENGTHS:
                    found = fit(_config(Path(folder), length), architecture, machine)
                    if found.estimate.likely <= found.free_bytes:
                        yield Plan(card, shape, length, found)
                        break


def _config(folder: Path, length: int) -> Any:
    file = folder / "card.yaml"
    file.write_text(_CONFIG.format(length=length))
    return load_config(file).config


def table(planned: Sequence[Plan], rows: Sequence[dict[str, Any]]) -> str:
    """Return a table in Markdown: a line for each model, a column for each card."""
    cards = sorted({one.card_gb for one in planned})
    cells = {(p.shape, p.card_gb): cell(p, row) for p, row in zip(planned, rows, strict=True)}
    lines = ["| model | " + " | ".join(f"{card} GB" for card in cards) + " |"]
    lines.append("|---" * (1 + len(cards)) + "|")
    for shape in dict.fromkeys(one.shape for one in planned):
        found = [cells.get((shape, card), "–") for card in cards]
        lines.append(f"| {shape} | " + " | ".join(found) + " |")
    return "\n".join(lines)


def cell(plan: Plan, row: dict[str, Any]) -> str:
    """Return length, way and memory of one run."""
    if "failed" in row:
        return f"{plan.length} failed: {row['failed']}"
    took = f"{row['device']:.1f} GiB" if row else f"{plan.found.estimate.likely / GIB:.1f} planned"
    return f"{plan.length:,} ({plan.way}; {took})"


def main(words: Sequence[str] | None = None) -> None:
    """Plan all runs, play them, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cards", nargs="+", type=int, default=list(CARDS), metavar="GB")
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--plan", action="store_true", help="do not run anything")
    parser.add_argument("--limit-s", type=float, default=120.0, help="of a row")
    parser.add_argument("--budget-s", type=float, default=400.0, help="no row begins after it")
    parser.add_argument("--at-once", type=int, default=6, help="rows that share the device")
    parser.set_defaults(device="cuda", shape=None, length=None, divide=1)
    options = parser.parse_args(words)
    planned = list(plans(options.cards, options.models))
    rows: list[dict[str, Any]] = [{} for _ in planned]
    if not options.plan:
        rows = Queue([one.case for one in planned], options).measure()
    print(table(planned, rows))


if __name__ == "__main__":
    main()
