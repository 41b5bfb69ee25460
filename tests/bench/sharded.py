"""DDP against FSDP on two GPUs: speed, memory against the plan, and whether nothing differs.

    python -m tests.bench.sharded [--device cpu] [--only NAME …] [--limit-s 40] [--budget-s 360]

The first table has whole runs of a tiny model from disk through the real loader: losses of two
ranks against one rank with twice the batch (fp32), and a rollback against a straight run, bit by
bit, weights included. The second has runs of random models in published shapes: tokens per second,
and the memory of each rank against the plan. `70b-4` is the shape of a 70B with 4 of its 80 layers.
Each row has two processes of its own; one that fails or takes too long is a row as well. With
`--device cpu` it runs anywhere, over gloo and with small shapes, to see that it works.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.ports import free_port

from .children import GROWING_SEGMENTS, Child

RANKS = 2
NF4 = {"model__quantize": "nf4"}
FSDP = {"train__strategy": "fsdp"}
STREAMED = {**NF4, **FSDP, "train__memory": "streamed"}
CLOSE = 2e-5
"""Largest difference of losses in fp32, whose sums have another order."""
PLANNED = 0.05
"""Largest relative error of the plan of memory."""


@dataclass(frozen=True)
class Case:
    """One row."""

    name: str
    sets: dict[str, Any] = field(default_factory=dict)
    shape: str = ""
    """The shape of a random model; empty for the tiny model from disk."""
    ranks: int = RANKS
    length: int = 512
    accumulate: int = 4


EXACT = (
    Case("one rank, bf16", {}, ranks=1),
    Case("one rank, nf4", NF4, ranks=1),
    Case("one rank, streamed nf4", {**NF4, "train__memory": "streamed"}, ranks=1),
    Case("ddp, bf16", {}),
    Case("fsdp, bf16", FSDP),
    Case("ddp, nf4", NF4),
    Case("fsdp, nf4", {**NF4, **FSDP}),
    Case("fsdp, streamed nf4", STREAMED),
)
MEASURED = (
    Case("3b ddp, bf16", {}, "3b"),
    Case("3b fsdp, bf16", FSDP, "3b"),
    Case("3b ddp, nf4", NF4, "3b"),
    Case("3b fsdp, nf4", {**NF4, **FSDP}, "3b"),
    Case("3b fsdp streamed, nf4", STREAMED, "3b"),
    Case("70b-4 ddp, nf4", NF4, "70b-4"),
    Case("70b-4 fsdp, nf4", {**NF4, **FSDP}, "70b-4"),
    Case("70b-4 fsdp streamed, nf4", STREAMED, "70b-4"),
    Case("70b-4 fsdp streamed, host", {**STREAMED, "train__activations": "host"}, "70b-4"),
)


class Group:
    """The processes of a row, which import the training stack until it is their turn."""

    def __init__(self, case: Case, folder: Path, options: argparse.Namespace) -> None:
        self.case = case
        place = {
            "WORLD_SIZE": str(case.ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            **GROWING_SEGMENTS,
        }
        if options.device == "cpu":
            place |= {"ACCELERATE_USE_CPU": "true", "CUDA_VISIBLE_DEVICES": ""}
        shape = "tiny" if case.shape and options.device == "cpu" else case.shape
        self._children = [
            Child(
                _work, case, shape, str(folder), rank,
                environment={**place, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            )
            for rank in range(case.ranks)
        ]  # fmt: skip

    def start(self) -> None:
        """Begin to import."""
        for child in self._children:
            child.start()

    def measure(self, limit_s: float) -> dict[str, Any]:
        """Return what rank 0 has found, or what failed on any rank."""
        with ThreadPoolExecutor(len(self._children)) as pool:
            found = list(pool.map(lambda child: child.measure(limit_s), self._children))
        return next((one for one in found if "failed" in one), found[0])

    def end(self) -> None:
        """End the processes."""
        for child in self._children:
            child.end()


def _work(case: Case, shape: str, folder: str, rank: int) -> dict[str, Any]:
    from .sharded_rank import compared, measured

    if shape:
        return measured(case, shape, Path(folder), rank)
    return compared(case, Path(folder), rank)


def main() -> None:
    """Measure and print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--only", nargs="+", default=[""], help="names of rows, or parts of them")
    parser.add_argument("--limit-s", type=float, default=40.0, help="of a row")
    parser.add_argument("--budget-s", type=float, default=360.0, help="no row begins after it")
    parser.add_argument("--ahead", type=int, default=2, help="rows that get ready meanwhile")
    options = parser.parse_args()
    ends_s = time.monotonic() + options.budget_s
    with tempfile.TemporaryDirectory() as folder:
        for cases, show in ((EXACT, Exactness()), (MEASURED, show_measured)):
            chosen = [one for one in cases if any(part in one.name for part in options.only)]
            _rows(chosen, show, Path(folder) / str(len(cases)), options, ends_s)


def _rows(
    cases: Sequence[Case],
    show: Callable[[Case, dict[str, Any]], None],
    folder: Path,
    options: argparse.Namespace,
    ends_s: float,
) -> None:
    groups = [Group(case, folder / str(number), options) for number, case in enumerate(cases)]
    for number, group in enumerate(groups):
        if time.monotonic() > ends_s:
            row: dict[str, Any] = {"failed": "left out: the time is up"}
        else:
            for near in groups[number : number + 1 + options.ahead]:
                near.start()
            row = group.measure(options.limit_s)
        if "failed" in row:
            print(f"{group.case.name:28} {row['failed']} ({row.get('took', '')})", flush=True)
        else:
            show(group.case, row)
    for group in groups:
        group.end()


class Exactness:
    """The lines of the first table; those of one rank come first."""

    def __init__(self) -> None:
        self._alone: dict[str, list[tuple[float, float]]] = {}

    def __call__(self, case: Case, row: dict[str, Any]) -> None:
        """Print the line of a row."""
        form = case.name.rpartition(", ")[2]
        if case.ranks == 1:
            self._alone[form] = row["fp32"]
        alone = self._alone.get(form)
        apart = "-" if alone is None else _apart(row["fp32"], alone)
        print(
            f"{case.name:28} one rank with twice the batch: {apart:24} rollback: "
            f"{_same(row['losses_same'], 'losses')}, {_same(row['weights_same'], 'weights')}; "
            f"{row['strategy']}; {row['took']}",
            flush=True,
        )


def _apart(some: list[tuple[float, float]], others: list[tuple[float, float]]) -> str:
    """Return the largest difference of losses and norms, and whether it is small enough."""
    if len(some) != len(others):
        return f"NO, {len(some)} steps and {len(others)}"
    largest = max(abs(a - b) for one, other in zip(some, others, strict=True)
                  for a, b in zip(one, other, strict=True))  # fmt: skip
    return f"{'yes' if largest <= CLOSE else 'NO'}, {largest:.1e} apart"


def _same(same: bool, what: str) -> str:
    return f"{what} {'same bits' if same else 'DIFFER'}"


def show_measured(case: Case, row: dict[str, Any]) -> None:
    """Print the line of a random model: speed, and memory of each rank against the plan."""
    peaks = ", ".join(f"{peak:.3f}" for peak in row["peaks"]) or "-"
    error = row["planned"] / max(row["peaks"]) - 1 if row["peaks"] else None
    off = "" if error is None else f" {error:+.1%}{'' if abs(error) <= PLANNED else ' NO'}"
    print(
        f"{case.name:28} {row['tokens_per_s']:9,.0f} tokens/s  {1e3 * row['step_s']:8.1f} ms/step  "
        f"GiB by rank {peaks}; planned {row['planned']:.3f}{off}; {row['terms']}; "
        f"losses {row['losses']}; {row['notes']}; {row['took']}",
        flush=True,
    )


if __name__ == "__main__":
    started = time.monotonic()
    main()
    print(f"{time.monotonic() - started:.0f} s in all")
