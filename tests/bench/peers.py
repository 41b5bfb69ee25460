"""Speed and memory beside the peers: same weights, data, shapes and card, in one run.

    python -m tests.bench.peers [--cases NAME …] [--peers NAME …] [--unsloth PYTHONPATH]

fttui trains by its own command, `fttui run`, a peer by a stock script (`peer_script.py`). A step is
timed on the device after the first ones; memory is what the allocator has reserved at most. Dropout
is 0 everywhere, and a row shows its first losses, by which the rows of a case can be compared.
`fttui` has its keys on `auto`, the micro-batch included; `fttui=` has the micro-batches of the
peers, and `fttui-` also recomputes all layers, as the peers do by default; a peer with a `+`
recomputes none. The rows of a case are compared with the fastest peer.

A peer trains all cases in one process, one after another, so that its imports count once; each
run of fttui is a process of its own. Rows are printed as they come, and the tables at the end.

Unsloth needs other releases of TRL and datasets than fttui, so its packages are looked for in the
folders of `--unsloth`. A peer that is not installed is left out, with a message.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from fttui.engine.protocol.events import RunStarted, StepFinished
from fttui.engine.run.run_dir import RunDirectory

WARM_STEPS = 4
GIB = 2**30
_WORDS = ("alpha", "beta", "gradient", "seven", "the", "of", "and", "rate", "loss", "1,024")
_NEEDS = {"trl": "trl", "liger": "liger_kernel", "unsloth": "unsloth"}
_WRITE = """
import sys
from pathlib import Path
from tests.bench.random_models import write_model
write_model(sys.argv[1], Path(sys.argv[2]), "cuda")
"""
Row = tuple[str, dict[str, Any]]
"""A peer and its figures, or what went wrong."""
_SCRIPT = Path(__file__).with_name("peer_script.py")


@dataclass(frozen=True)
class Case:
    """What is trained."""

    shape: str
    length: int
    batch: int
    accumulate: int
    task: str = "sft"
    """sft; natural: sft on texts of natural lengths; packed; dpo."""

    @property
    def name(self) -> str:
        """How the table calls it."""
        return f"{self.shape}:{self.length}:{self.batch}x{self.accumulate}:{self.task}"

    @property
    def sequences(self) -> int:
        """Rows of a step."""
        return self.batch * self.accumulate


CASES = (
    Case("1b", 512, 1, 8),
    Case("1b", 512, 8, 1),
    Case("1b", 2048, 2, 4),
    Case("1b", 4096, 1, 4),
    Case("0.5b", 1024, 4, 2),
    Case("3b", 1024, 4, 2),
    Case("8b", 2048, 1, 4),
    Case("1b", 512, 32, 1),
    Case("1b", 1024, 4, 4, "natural"),
    Case("1b", 1024, 4, 2, "packed"),
    Case("1b", 512, 4, 2, "dpo"),
)

PEERS = ("fttui", "fttui=", "fttui-", "trl", "trl+", "liger+", "unsloth", "unsloth+")


def main(words: Sequence[str] | None = None) -> None:
    """Print a table for each case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", nargs="*", default=[], help="beginnings of their names")
    parser.add_argument("--peers", nargs="+", default=list(PEERS))
    parser.add_argument("--unsloth", default="", help="PYTHONPATH of Unsloth")
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--limit-s", type=float, default=150.0, help="of one row")
    parser.add_argument("--budget-s", type=float, default=540.0, help="no row begins after it")
    options = parser.parse_args(words)
    cases = [case for case in CASES
             if not options.cases or case.name.startswith(tuple(options.cases))]  # fmt: skip
    until = time.monotonic() + options.budget_s
    rows: dict[Case, list[Row]] = {case: [] for case in cases}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        bench = Bench(Path(name), options.unsloth, options.steps, options.limit_s)
        peers = list(bench.installed(options.peers))
        for case in cases:
            bench.prepare(case)
        for peer in peers:
            for case, row in bench.rows(peer, cases, until):
                rows[case].append((peer, row))
                print(f"{peer:10} {case.name:24} {json.dumps(row)}", flush=True)
    for case, found in rows.items():
        print(f"\n{case.name:22} {'s/step':>8} {'slowest':>8} {'tokens/s':>9} {'GiB':>6} "
              f"{'ratio':>6}  first losses")  # fmt: skip
        print("\n".join(table(case, found)), flush=True)


def table(case: Case, rows: Sequence[Row]) -> Iterator[str]:
    """Yield a line for each row; the ratio is that to the fastest peer."""
    peers = [row["step_s"] for peer, row in rows
             if not peer.startswith("fttui") and "step_s" in row]  # fmt: skip
    for peer, row in rows:
        if "step_s" not in row:
            yield f"  {peer:20} failed: {row['failed']}"
            continue
        full = case.task == "sft"
        tokens = f"{case.sequences * case.length / row['step_s']:.0f}" if full else "-"
        ratio = f"{min(peers) / row['step_s']:.2f}x" if peers else "-"
        losses = " ".join(f"{loss:.4f}" for loss in row["losses"])
        yield (
            f"  {peer:20} {row['step_s']:8.4f} {row['slowest_s']:8.4f} {tokens:>9} "
            f"{row['reserved'] / GIB:6.2f} {ratio:>6}  {losses}; {row['version']}"
        )


class Bench:
    """Runs the rows in one folder."""

    def __init__(self, folder: Path, unsloth: str, steps: int, limit_s: float) -> None:
        self._folder = folder
        self._unsloth = unsloth
        self._steps = steps
        self._limit_s = limit_s

    def installed(self, peers: Sequence[str]) -> Iterator[str]:
        """Yield the peers that can run here; print which cannot."""
        for peer in peers:
            package = _NEEDS.get(peer.rstrip("+-="))
            if package is None or self._imports(peer, package):
                yield peer
            else:
                print(f"{peer} is left out: {package} is not installed", flush=True)

    def _imports(self, peer: str, package: str) -> bool:
        look = f"import importlib.util as u, sys; sys.exit(u.find_spec({package!r}) is None)"
        return self._run([sys.executable, "-c", look], peer).returncode == 0

    def prepare(self, case: Case) -> None:
        """Write model and data of a case, unless they are there."""
        if not (self._folder / case.shape).exists():
            words = [case.shape, str(self._folder / case.shape)]
            done = self._run([sys.executable, "-c", _WRITE, *words], "")
            if done.returncode:
                raise SystemExit(f"the model was not written: {done.stderr[-500:]}")
        write_data(case, self._data(case), self._steps * case.sequences)

    def _data(self, case: Case) -> Path:
        return self._folder / f"{case.name.replace(':', '-')}.jsonl"

    def rows(
        self, peer: str, cases: Sequence[Case], until: float
    ) -> Iterator[tuple[Case, dict[str, Any]]]:
        """Yield the figures of each case, or what went wrong; none begins after *until*."""
        if not peer.startswith("fttui"):
            if time.monotonic() < until:
                yield from self._peer(peer, cases)
            return
        for case in cases:
            if time.monotonic() < until:
                yield case, self._own(peer, case)

    def _own(self, peer: str, case: Case) -> dict[str, Any]:
        try:
            return self._fttui(peer, case)
        except (Failed, subprocess.TimeoutExpired) as error:
            return {"failed": str(error)[-400:]}

    def _peer(self, peer: str, cases: Sequence[Case]) -> Iterator[tuple[Case, dict[str, Any]]]:
        known = [{**asdict(case), "steps": self._steps, "warm": WARM_STEPS,
                  "data": str(self._data(case))} for case in cases]  # fmt: skip
        command = [sys.executable, "-P", str(_SCRIPT), peer, json.dumps(known), str(self._folder)]
        try:
            done = self._run(command, peer, len(cases))
            said, why = done.stdout, " ".join(done.stderr.split())[-400:]
        except subprocess.TimeoutExpired as error:
            said, why = (error.stdout or b"").decode(), f"more than {error.timeout:.0f} s"
        found = [line for line in said.splitlines() if line.startswith("ROW ")]
        rows = [dict(json.loads(line.removeprefix("ROW "))) for line in found]
        for at, case in enumerate(cases):
            yield case, rows[at] if at < len(rows) else {"failed": why}

    def _fttui(self, peer: str, case: Case) -> dict[str, Any]:
        runs = Path(tempfile.mkdtemp(dir=self._folder))
        config = runs / ".config.yaml"
        config.write_text(self._config(case, peer.removeprefix("fttui")))
        command = [sys.executable, "-m", "fttui.tui", "run", str(config), "--headless",
                   "--runs-dir", str(runs)]  # fmt: skip
        done = self._run(command, peer)
        paths = [path for path in runs.iterdir() if not path.name.startswith(".")]
        if done.returncode or not paths:
            raise Failed(" ".join((done.stdout + done.stderr).split())[-400:])
        return of_journal(RunDirectory(paths[0]))

    def _config(self, case: Case, way: str) -> str:
        packing = "true" if case.task == "packed" else "false"
        batch = f"batch: {case.batch}, accumulate: {case.accumulate}"
        if not way:
            batch = f"batch: auto, sequences_per_update: {case.sequences}"
        recomputed = ", activation_checkpointing: true" if way == "-" else ""
        lines = [
            f"model: {{id: {self._folder / case.shape}, quantize: nf4}}",
            "adapter: {r: 16, alpha: 32, dropout: 0}",
            f"data: {{train: {self._data(case)}, max_length: {case.length}, eval_fraction: 0, "
            f"packing: {packing}, accept: [all]}}",
            f"train: {{steps: {self._steps}, {batch}, lr: 2.0e-4, schedule: constant, warmup: 0"
            f"{recomputed}}}",
            "checkpoint: {every: 0, at_start: false}",
            f"task: {'dpo' if case.task == 'dpo' else 'sft'}",
            "name: peers",
        ]
        return "\n".join(lines) + "\n"

    def _run(
        self, command: Sequence[str], peer: str, rows: int = 1
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=self._limit_s * rows,
            env=self._environment(peer),
            check=False,
        )

    def _environment(self, peer: str) -> Mapping[str, str]:
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        if peer.startswith("unsloth") and self._unsloth:
            environment["PYTHONPATH"] = self._unsloth
        return environment


class Failed(Exception):
    """A row failed."""


def of_journal(run: RunDirectory) -> dict[str, Any]:
    """Return the figures of a run of fttui from its journal."""
    from tests.support.training import read_records

    records = read_records(run)
    # A step is journaled while the next one runs, but for the last.
    ends = [r.time for r in records if isinstance(r.event, StepFinished)][:-1]
    took = [after - before for before, after in pairwise(ends)][WARM_STEPS:]
    steps = [r.event for r in records if isinstance(r.event, StepFinished)]
    facts = [r.event for r in records if isinstance(r.event, RunStarted)][-1].facts
    return {
        "step_s": statistics.median(took),
        "slowest_s": max(took),
        "reserved": max(step.mem_reserved_bytes or 0 for step in steps),
        "losses": [step.loss for step in steps[:3]],
        "version": facts.get("fast mode", ""),
    }


def write_data(case: Case, file: Path, rows: int) -> None:
    """Write rows of drawn words, as long as the case asks for; a token is a byte."""
    draw = random.Random(1)
    with file.open("w") as out:
        for _ in range(rows):
            length = case.length + 64
            if case.task in ("natural", "packed"):
                length = int(min(case.length, max(40.0, draw.lognormvariate(5.6, 0.6))))
            row = _pair(draw, length) if case.task == "dpo" else {"text": _text(draw, length)}
            out.write(json.dumps(row) + "\n")


def _pair(draw: random.Random, length: int) -> dict[str, str]:
    half = length // 2
    return {
        "prompt": _text(draw, half),
        "chosen": _text(draw, half),
        "rejected": _text(draw, half),
    }


def _text(draw: random.Random, length: int) -> str:
    words: list[str] = []
    while sum(map(len, words)) + len(words) < length:
        words.append(draw.choice(_WORDS))
    return " ".join(words)[:length]


if __name__ == "__main__":
    main()
