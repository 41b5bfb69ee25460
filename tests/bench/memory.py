"""What runs really need of a GPU, against the estimate, and how small an 8B gets in lean mode.

    python -m tests.bench.memory [--device cpu] [--only NAME …] [--limit-s S] [--budget-s S]

Every row is a whole run of ours (session, journal, guard, detector) on a model with random weights
in a published shape, in a process of its own; rows named lean or tight are held to a process total
of 6.0 GiB, context included. `--only` takes names of rows or beginnings of them. Rows whose time
counts have the device to themselves, the others share it. Needs a CUDA device; `--device cpu`
only tries the script out.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .children import Child

AT_ONCE = 4
"""Rows that share the device."""
AHEAD = 10
"""Processes that import the training stack while others measure."""
LEAN = {"train.memory": "lean", "train.optimizer": "paged_adamw_8bit"}
BF16 = {"train.adapter_precision": "bf16"}
FP32 = {"train.adapter_precision": "fp32"}
ON = {"train.activation_checkpointing": "true"}
WHOLE = {"train.activation_checkpointing": "false"}
SOME = ON | {"train.whole_layers": "10"}
DROP = {"adapter.dropout": "0.05"}
FAST = BF16 | {"train.fast": "on"}
AHEAD_OF_STEP = {"contrastive.cross_accumulation": "on"}
ALONE = {"contrastive.cross_accumulation": "off"}


@dataclass(frozen=True)
class Case:
    """One row."""

    name: str
    shape: str
    length: int
    batch: int = 1
    sets: dict[str, str] = field(default_factory=dict)
    capped: bool = False
    accumulate: int = 2
    task: str = "sft"
    alone: bool = False
    """Its time counts, or what the driver takes beside the allocator."""
    loaded: bool = False
    """From disk through the real loader."""
    varied: bool = False
    """Texts of several lengths, the longest last."""
    segments: bool = True
    """The allocator's segments may grow, as the engine has it."""
    pooled: bool = False
    """Graphs are rehearsed in the memory that they will have."""

    def title(self) -> str:
        """Name, shape, length, batch and what is set."""
        short = [f"{k.rpartition('.')[2]}={v}" for k, v in self.sets.items()]
        flags = [name for name in ("varied", "loaded", "pooled") if getattr(self, name)]
        flags += [] if self.segments else ["fixed segments"]
        words = [f"{self.name}:", self.shape, self.task, f"T{self.length}", f"B{self.batch}"]
        return " ".join([*words, *short, *flags])


ADAMW = BF16 | ON | {"train.optimizer": "adamw"}
CASES = (
    Case("lean-2048", "8b", 2048, 1, LEAN | ON, capped=True, accumulate=4, alone=True),
    Case("lean-2048-graphs", "8b", 2048, 1, LEAN | ON | {"train.fast": "on"}, capped=True,
         accumulate=4, alone=True),
    Case("lean-1024", "8b", 1024, 1, LEAN | ON, capped=True, accumulate=4, alone=True),
    Case("plain-2048", "8b", 2048, 1, ADAMW, accumulate=4, alone=True),
    Case("plain-1024", "8b", 1024, 1, ADAMW, accumulate=4, alone=True),
    Case("fast-1b-2048-whole", "1b", 2048, 1, FAST | WHOLE, alone=True),
    Case("fast-1b-2048", "1b", 2048, 1, FAST | ON, alone=True),
    Case("fast-8b-1024", "8b", 1024, 1, FAST | ON | DROP, alone=True),
    Case("fast-8b-1024-whole", "8b", 1024, 1, FAST | WHOLE, alone=True),
    Case("fast-1b-lengths", "1b", 2048, 1, FAST | WHOLE, alone=True, varied=True),
    Case("fast-1b-pooled", "1b", 2048, 1, FAST | WHOLE, alone=True, varied=True, pooled=True),
    Case("fast-1b-tight", "1b", 1536, 1, FAST | WHOLE, alone=True, varied=True, capped=True),
    Case("fast-1b-fixed", "1b", 2048, 1, FAST | WHOLE, alone=True, varied=True, segments=False),
    Case("trial-1b", "1b", 2048, 1, FP32 | WHOLE | DROP, alone=True),
    Case("load-lean", "1b", 512, 1, LEAN | ON, loaded=True, alone=True),
    Case("load-plain", "1b", 512, 1, BF16 | ON, loaded=True, alone=True),
    Case("fast-0.1b-1024", "0.1b", 1024, 4, FAST | WHOLE | DROP),
    Case("fast-1b-512", "1b", 512, 1, FAST | ON | DROP),
    Case("fast-1b-512-whole", "1b", 512, 1, FAST | WHOLE | DROP),
    Case("fast-3b-1024-whole", "3b", 1024, 1, FAST | WHOLE | FP32),
    Case("fast-pairs", "1b", 512, 2, FAST | ON | ALONE, task="contrastive"),
    Case("fast-pairs-whole", "1b", 512, 2, FAST | WHOLE | ALONE, task="contrastive"),
    Case("fast-pairs-ahead", "1b", 512, 2, FAST | WHOLE | AHEAD_OF_STEP, task="contrastive",
         accumulate=4),
    Case("3b-1024", "3b", 1024, 1, BF16 | ON),
    Case("3b-2048", "3b", 2048, 2, FP32 | ON | DROP),
    Case("1b-lean", "1b", 2048, 1, LEAN | ON),
    Case("pairs", "1b", 512, 2, BF16 | ON | ALONE, task="contrastive"),
    Case("pairs-whole", "1b", 512, 2, BF16 | WHOLE | ALONE | DROP, task="contrastive"),
    Case("pairs-ahead", "1b", 512, 2, BF16 | ON | AHEAD_OF_STEP, task="contrastive", accumulate=8),
    Case("pairs-ahead-whole", "1b", 512, 2, BF16 | WHOLE | AHEAD_OF_STEP, task="contrastive",
         accumulate=4),
    Case("pairs-lean", "1b", 512, 2, LEAN | ON, task="contrastive"),
    Case("dpo", "1b", 1024, 1, BF16 | ON, task="dpo"),
    Case("dpo-whole", "1b", 512, 2, BF16 | WHOLE | DROP, task="dpo"),
    Case("dpo-lean", "1b", 1024, 1, LEAN | ON, task="dpo"),
    Case("kto", "1b", 1024, 2, FP32 | ON, task="kto"),
    Case("dpo-512", "1b", 512, 1, BF16 | ON | DROP, task="dpo", accumulate=4, alone=True),
    Case("dpo-512-graphs", "1b", 512, 1, FAST | ON | DROP, task="dpo", accumulate=4, alone=True),
    Case("dpo-512-graphs-whole", "1b", 512, 1, FAST | WHOLE | DROP, task="dpo", accumulate=4,
         alone=True),
    Case("fast-dpo", "1b", 1024, 1, FAST | ON, task="dpo"),
    Case("fast-dpo-whole", "1b", 512, 2, FAST | WHOLE | DROP, task="dpo"),
    Case("fast-kto", "1b", 1024, 2, FAST | ON, task="kto"),
    Case("some-8b", "8b", 1024, 1, BF16 | SOME, accumulate=2),
    Case("fast-some-8b", "8b", 1024, 1, FAST | SOME | DROP),
    Case("simctg", "1b", 1024, 1, BF16 | ON | {"contrastive.kind": "simctg"}),
    Case("fast-simctg", "1b", 1024, 1, FAST | ON | {"contrastive.kind": "simctg"}),
    Case("0.1b-1024", "0.1b", 1024, 4, FP32 | ON | DROP),
    Case("0.1b-2048", "0.1b", 2048, 1, BF16 | WHOLE),
    Case("0.5b-1024", "0.5b", 1024, 2, BF16 | ON),
    Case("0.5b-512", "0.5b", 512, 4, FP32 | WHOLE | DROP),
    Case("1b-512", "1b", 512, 1, BF16 | ON | DROP),
    Case("1b-2048", "1b", 2048, 1, FP32 | ON),
    Case("1b-1024-whole", "1b", 1024, 2, BF16 | WHOLE),
    Case("lean-4096", "8b", 4096, 1, LEAN | ON | {"train.activations": "host"}, capped=True,
         accumulate=4, alone=True),
)  # fmt: skip
"""By worth: what does not fit into the time is left out at the end."""


def main() -> None:
    """Measure the rows; processes load the training stack while others measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only", nargs="+", help="names of rows, or beginnings of them")
    parser.add_argument("--limit-s", type=float, default=60.0, help="of a row")
    parser.add_argument("--budget-s", type=float, default=240.0, help="no row begins after it")
    parser.add_argument("--shape", help="of all rows, to try the script out")
    parser.add_argument("--length", type=int, help="of all rows, to try the script out")
    parser.add_argument("--at-once", type=int, default=AT_ONCE, help="rows that share the device")
    options = parser.parse_args()
    wanted = tuple(options.only or [""])
    queue = Queue([case for case in CASES if case.name.startswith(wanted)], options)
    print(f"{'run':72} {'estimate':>8} {'measured':>8} {'error':>6} {'reserved':>8} {'device':>7} "
          f"{'ms/micro':>8}  notes", flush=True)  # fmt: skip
    errors = [row["error"] for row in queue.measure() if "error" in row]
    if errors:
        print(f"mean |error| {statistics.mean(errors):.1%}, largest {max(errors):.1%}, "
              f"{len(errors)} runs", flush=True)  # fmt: skip


class Queue:
    """Rows in order: those alone one after another, the others some at once."""

    def __init__(self, cases: Sequence[Case], options: argparse.Namespace) -> None:
        self._rows = [(case, child_of(case, options)) for case in cases]
        self._options = options
        self._ends_s = time.monotonic() + options.budget_s

    def measure(self) -> list[dict[str, Any]]:
        """All rows that begin in time."""
        rows: list[dict[str, Any]] = []
        while self._rows:
            count = next((n for n, (case, _) in enumerate(self._rows) if case.alone), None)
            group = self._rows[: 1 if count == 0 else count]
            for _, child in self._rows[: len(group) + AHEAD]:
                child.start()
            with ThreadPoolExecutor(self._options.at_once) as pool:
                rows += pool.map(self._one, *zip(*group, strict=True))
            self._rows = self._rows[len(group) :]
        return rows

    def _one(self, case: Case, child: Child) -> dict[str, Any]:
        if time.monotonic() > self._ends_s:
            child.end()
            row: dict[str, Any] = {"failed": "left out: the time is up"}
        else:
            row = child.measure(self._options.limit_s)
        show(case.title(), row)
        return row


def child_of(case: Case, options: argparse.Namespace) -> Child:
    """The process of a row."""
    segments = {"PYTORCH_ALLOC_CONF": f"expandable_segments:{case.segments}"}
    shape, length = options.shape or case.shape, options.length or case.length
    return Child(_measured, case, options.device, shape, length, environment=segments)


def show(title: str, row: dict[str, Any]) -> None:
    """Print one row of the table."""
    if "failed" in row:
        print(f"{title:72} {row['failed']}; {row.get('took', '')}", flush=True)
        return
    print(f"{title:72} {row['estimate']:8.3f} {row['measured']:8.3f} {row['signed']:+6.1%} "
          f"{row['reserved']:8.3f} {row['device']:7.3f} {row['ms']:8.1f}  {row['notes']}; "
          f"{row['took']}", flush=True)  # fmt: skip


def _measured(case: Case, device: str, shape: str, length: int) -> dict[str, Any]:
    from .memory_row import measured

    with tempfile.TemporaryDirectory() as folder:
        return measured(case, device, shape, length, Path(folder))


if __name__ == "__main__":
    main()
