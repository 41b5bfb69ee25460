"""Compare the steps of two checkouts bit for bit: the same runs, commands and faults in both.

    python -m tests.bench.same_steps --other PATH [--python PATH/.venv/bin/python]
        [--tasks sft contrastive dpo kto] [--ranks 1 2] [--show 5]

Each run trains a tiny model on the CPU: settings, a pause with an evaluation, a checkpoint and
skipped data, a step refused because of a NaN on the last rank, a rollback, a loss that jumps and
the recovery from it, a stop and a resume. Compared are the fields of every step but for measured
times and memory, every evaluation and rollback, and the hashes of the last checkpoint's files.
Prints a row for each run; the exit code is 1 if any of these differ. Outcomes of commands and
anomalies are compared too, and counted apart because they hold texts that may be reworded.

Both checkouts need `tests.support.training.play` and `new_run`, `tests.support.ranks.in_ranks` and
an environment in which `fttui` is imported from that checkout.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from itertools import product, zip_longest
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
COMMANDS: dict[int, list[str]] = {
    2: ["lr scale 0.5", "clip p90", "run 1"],
    4: ["lr set 0.004"],
    7: ["rollback 4 lr=0.5 clip=0.8 skip=1", "note from step 4"],
    8: ["policy autopilot off", "gradients"],
    11: ["recover"],
    14: ["lr reset", "clip off", "eval"],
    16: ["clip 0.3", "skip 2", "checkpoint pin late"],
    18: ["stop"],
}
PAUSED = ["eval", "checkpoint pin held", "skip 1", "resume"]
ODD = {5: math.nan, 10: 20.0, 11: 20.0}
"""Step → factor of its loss, the first time it is trained; NaN on the last rank alone."""
SETS: dict[str, dict[str, Any]] = {
    "sft": {"train__ema": 0.9},
    "packed": {
        "data__packing": "true", "data__max_length": 96, "train__optimizer": "lion",
        "train__lr": 0.002,
    },
    "contrastive": {
        "contrastive__learn_temperature": "true", "contrastive__cross_accumulation": "on",
        "train__optimizer": "adafactor", "train__ema": 0.9,
    },
    "dpo": {"preference__ce_weight": 0.1},
    "kto": {"train__optimizer": "sgd", "train__lr": 0.5},
}  # fmt: skip
NUMBERS = ("StepFinished", "EvalFinished", "RolledBack")
TEXTS = ("CommandApplied", "CommandFailed", "AnomalyRaised", "AnomalyResolved", "ProbationEnded")
ASIDE = {
    *("applied", "settings", "previous"),  # of a command: added after cb82d2e
    *("step_s", "data_s", "compute_s", "optimizer_s", "tokens_per_s", "samples_per_s"),
    *("mem_total_bytes", "rss_bytes", "skew_s", "seconds", "mem_allocated_bytes"),
    *("mem_reserved_bytes", "gpu_util", "gpu_temp_c", "gpu_power_w", "pcie_bytes_per_s", "rank_s"),
}
"""Fields that are measured, or that one of the checkouts may not have."""
_ASIDE = ("state.msgpack", "adapter_config.json")
"""Files of a checkpoint with measured times or the model's folder in them."""


def main() -> int:
    """Train everything in both checkouts and compare."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--other", type=Path, help="the other checkout")
    parser.add_argument("--python", type=Path, help="its interpreter; default: its .venv")
    parser.add_argument("--tasks", nargs="+", default=list(SETS), choices=list(SETS))
    parser.add_argument("--ranks", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--show", type=int, default=5, help="differences shown of a run")
    parser.add_argument("--play", nargs=3, metavar=("TASK", "RANKS", "FOLDER"), help="internal")
    options = parser.parse_args()
    if options.play:
        task, ranks, folder = options.play
        return play_in_this_checkout(task, int(ranks), Path(folder))
    if options.other is None:
        parser.error("--other is missing: the checkout to compare with")
    other = options.other.absolute()
    python = options.python or other / ".venv" / "bin" / "python"
    print("task         ranks  steps  timelines  numbers  differ  texts  differ  checkpoint files")
    same = [
        compare(task, ranks, {ROOT: Path(sys.executable), other: python}, options.show)
        for task, ranks in product(options.tasks, options.ranks)
    ]
    return 0 if all(same) else 1


def compare(task: str, ranks: int, checkouts: dict[Path, Path], show: int) -> bool:
    """Train one run in each checkout and print how they differ."""
    this, other = (_played(task, ranks, *checkout) for checkout in checkouts.items())
    steps = [record for record in this["records"] if record[2] == "StepFinished"]
    row = f"{task:12} {ranks:5}  {len(steps):5}  {max(record[1] for record in steps):9}"
    different: dict[str, list[tuple[Any, Any]]] = {}
    for kinds in (NUMBERS, TEXTS):
        mine, theirs = ([r for r in one["records"] if r[2] in kinds] for one in (this, other))
        pairs = list(zip_longest(mine, theirs, fillvalue=[0, 0, "missing", {}]))
        different[kinds[0]] = [(a, b) for a, b in pairs if a != b]
        row += f"  {len(pairs):{7 if kinds is NUMBERS else 5}}  {len(different[kinds[0]]):6}"
    files = "equal" if this["files"] == other["files"] else "DIFFER"
    print(f"{row}  {files} ({len(this['files'])})", flush=True)
    for found in different.values():
        _show(found[:show])
    return not different[NUMBERS[0]] and files == "equal"


def _show(different: list[tuple[Any, Any]]) -> None:
    for mine, theirs in different:
        print(f"    step {mine[0]}, timeline {mine[1]}, {mine[2]}; other {theirs[:3]}")
        for key in sorted(mine[3].keys() | theirs[3].keys()):
            if mine[3].get(key) != theirs[3].get(key):
                print(f"        {key}: {mine[3].get(key)}, other {theirs[3].get(key)}")


def _played(task: str, ranks: int, checkout: Path, python: Path) -> dict[str, Any]:
    """Train a run with the code of a checkout; `-P` keeps this folder's modules out of the way."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [str(python), "-P", __file__, "--play", task, str(ranks), folder],
            cwd=checkout,
            env={**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"{checkout}: {task}, {ranks} ranks\n{done.stdout}{done.stderr}")
        found: dict[str, Any] = json.loads((Path(folder) / "found.json").read_text())
        return found


def play_in_this_checkout(task: str, ranks: int, folder: Path) -> int:
    """Train a run and write down what is compared."""
    from tests.support.ranks import in_ranks
    from tests.support.training import new_run, read_records

    sets = {"train__steps": 24, "train__batch": 4 // ranks, "train__devices": ranks, **SETS[task]}
    run = new_run(folder, "sft" if task == "packed" else task, **sets)
    for part in (_first_part, _second_part):
        codes = in_ranks(ranks, part, run)
        if any(codes):
            print(f"ranks ended with {codes}")
            return 1
    found = {"records": _comparable(read_records(run)), "files": _files(run.checkpoints)}
    (folder / "found.json").write_text(json.dumps(found))
    return 0


def _first_part(place: Any, run: Any) -> None:
    from fttui.engine.protocol.states import RunState
    from tests.support.training import Script, play

    _make_losses_odd(place.rank == place.world_size - 1)
    script = Script(dict(COMMANDS), states={RunState.PAUSED: list(PAUSED)})
    play(run, script, place=place)


def _second_part(place: Any, run: Any) -> None:
    from tests.support.training import play

    play(run, resume="last", place=place)


def _make_losses_odd(last_rank: bool) -> None:
    """Multiply losses where the Hugging Face trainer computes them, whatever is built on it."""
    from transformers import Trainer

    patched: Any = Trainer
    training_step, seen = patched.training_step, set[int]()

    def odd(self: Any, *args: Any, **named: Any) -> Any:
        step, factor = self.state.global_step + 1, 1.0
        if step in ODD and (step not in seen or self.odd_at == step):
            factor = ODD[step] if last_rank or math.isfinite(ODD[step]) else 1.0
        self.odd_at = step if step not in seen or self.odd_at == step else 0
        seen.add(step)
        compute_loss = self.compute_loss
        self.compute_loss = lambda *a, **n: compute_loss(*a, **n) * factor
        try:
            return training_step(self, *args, **named)
        finally:
            del self.compute_loss

    patched.odd_at, patched.training_step = 0, odd


def _comparable(records: list[Any]) -> list[Any]:
    import msgspec

    found = []
    for record in records:
        event = msgspec.to_builtins(record.event)
        kept = {key: _exact(value) for key, value in event.items() if key not in ASIDE}
        kind = type(record.event).__name__
        if kind in NUMBERS + TEXTS:
            found.append((record.step, record.timeline, kind, kept))
    return found


def _exact(value: Any) -> Any:
    """Every float with all its bits."""
    if isinstance(value, float):
        return value.hex()
    if isinstance(value, dict):
        return {key: _exact(item) for key, item in value.items()}
    return [_exact(item) for item in value] if isinstance(value, list) else value


def _files(checkpoints: Path) -> dict[str, str]:
    """sha256 of the files of the newest checkpoint."""
    manifests = [json.loads(file.read_text()) for file in checkpoints.glob("*/MANIFEST.json")]
    newest = max(manifests, key=lambda manifest: manifest["number"])
    return {n: f["sha256"] for n, f in newest["files"].items() if n not in _ASIDE}


if __name__ == "__main__":
    sys.exit(main())
