"""Culprit finder on poisoned data: found or not, in how many tests, and what a search costs.

    python -m tests.bench.culprits [--seeds N]

Every case trains the tiny model on easy texts and poisons some samples of one step. The detector
has to raise the alarm; then `culprit` searches. A second run without a search shows whether the
weights and losses after it are the same.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fttui.engine.data.batches.mixing import epoch_order
from fttui.engine.protocol.events import AnomalyRaised, CommandFailed, CulpritsFound
from fttui.engine.run.checkpoint_store import CheckpointStore
from fttui.engine.run.run_dir import RunDirectory
from tests.support.training import WORDS, Played, Script, new_run, play

STEP, LAST, EVERY = 70, 74, 20


@dataclass(frozen=True)
class Case:
    """A step with so many samples, of which some are poisoned."""

    task: str
    samples: int
    poisoned: int
    packed: bool = False

    @property
    def name(self) -> str:
        """The case in words."""
        return f"{self.task}{' packed' * self.packed}"


CASES = (
    Case("sft", 8, 1),
    Case("sft", 32, 1),
    Case("sft", 64, 1),
    Case("sft", 32, 2),
    Case("sft", 32, 3),
    Case("contrastive", 16, 1),
    Case("dpo", 16, 1),
    Case("sft", 8, 1, packed=True),
    Case("sft", 16, 0),
)


def noise(rng: random.Random, length: int) -> str:
    """A text that no easy text resembles."""
    return "".join(rng.choice("ZQX#%&@!~^{}[]") for _ in range(length))


def row(task: str, number: int) -> dict[str, str]:
    """A record that a tiny model learns soon."""
    word = WORDS[number % len(WORDS)]
    if task == "contrastive":
        return {"anchor": f"{word} {number % 7}", "positive": f"{word} {word} {number % 7}"}
    if task == "dpo":
        other = WORDS[(number + 3) % len(WORDS)]
        return {"prompt": f"{word}:", "chosen": f" {word}", "rejected": f" {other}"}
    return {"prompt": f"say {word}", "completion": " " + " ".join([word] * 3)}


def spoil(task: str, rows: list[dict[str, str]], at: int, rng: random.Random) -> None:
    """Poison a record."""
    if task == "dpo":
        rows[at] |= {"chosen": rows[at]["rejected"], "rejected": rows[at]["chosen"]}
        rows[at]["chosen"] = noise(rng, 40)
    elif task == "contrastive":
        rows[at] |= {"anchor": noise(rng, 40), "positive": noise(rng, 40)}
    else:
        rows[at]["completion"] = noise(rng, 60)


def made(folder: Path, case: Case, seed: int) -> tuple[RunDirectory, set[str]]:
    """A run, and the ids of its poisoned samples."""
    folder.mkdir(parents=True)
    accumulate = max(1, case.samples // 16)
    run = new_run(
        folder,
        case.task,
        train__steps=LAST,
        train__batch=case.samples // accumulate,
        train__accumulate=accumulate,
        train__seed=seed,
        train__warmup=4,
        train__schedule="constant",
        adapter__kind="none",
        data__eval_fraction=0,
        data__max_length=64 if not case.packed else 128,
        data__packing=str(case.packed).lower(),
        eval__every=0,
        checkpoint__every=EVERY,
        **({"contrastive__kind": "infonce"} if case.task == "contrastive" else {}),
    )
    rng = random.Random(seed)
    count = case.samples * (LAST + 2) * (6 if case.packed else 1)
    rows = [row(case.task, number) for number in range(count)]
    (file,) = folder.glob("*.jsonl")
    step = epoch_order(count, seed, 0)[(STEP - 1) * case.samples : STEP * case.samples]
    bad = rng.sample([int(index) for index in step], case.poisoned)
    for at in bad:
        spoil(case.task, rows, at, rng)
    file.write_text("".join(json.dumps(one) + "\n" for one in rows))
    return run, {f"{file.stem}:{at + 1}" for at in bad}


def weights(run: RunDirectory) -> dict[str, str]:
    """Hashes of the last checkpoint's files."""
    files = CheckpointStore(run).all()[-1].files
    return {n: f.sha256 for n, f in files.items() if n not in ("state.msgpack", "config.json")}


def damaged(case: Case) -> dict[int, list[str]]:
    """The commands of a case: without a poisoned sample, a high rate damages the weights."""
    return {} if case.poisoned else {STEP - 2: ["lr scale 60", "clip off"], STEP: ["lr reset"]}


def tried(folder: Path, case: Case, seed: int) -> tuple[str, Played]:
    """Search one case, and return the line of the table."""
    plain, _ = made(folder / "plain", case, seed)
    other = play(plain, Script(commands=damaged(case)))
    run, bad = made(folder / "searched", case, seed)
    commands = damaged(case)
    commands[LAST - 2] = ["culprit"]
    begun = time.perf_counter()
    found = play(run, Script(commands=commands))
    took = time.perf_counter() - begun
    alarms = ", ".join(event.id for _, event in found.at(AnomalyRaised)) or "no alarm"
    same = found.losses() == other.losses() and weights(run) == weights(plain)
    after = "same" if same else "DIFFERENT"
    head = f"| {case.name} | {case.samples} | {case.poisoned} | {seed} | {alarms} |"
    searches = [event for _, event in found.at(CulpritsFound)]
    if not searches:
        why = "; ".join(event.reason for event in found.events(CommandFailed))
        return f"{head} {why} | | | | {after} |", found
    event = searches[-1]
    ids = {one.id for one in event.search.culprits}
    right = "right" if ids == bad else f"WRONG: {sorted(ids)} for {sorted(bad)}"
    search = event.search
    cost = f"{search.steps} + {search.tests} | {search.seconds / took:.0%}"
    return (
        f"{head} {search.verdict}, {right} | {search.samples} | {cost} | {search.difference:g}, "
        f"{after} |"
    ), found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--only", default="")
    options: Any = parser.parse_args()
    print("| task | samples | poisoned | seed | alarms | verdict | units | steps + tests | time | "
          "difference, after |\n|" + "---|" * 10, flush=True)  # fmt: skip
    for case in CASES:
        for seed in range(options.seeds):
            if options.only and options.only not in f"{case}":
                continue
            with tempfile.TemporaryDirectory() as folder:
                print(tried(Path(folder), case, seed)[0], flush=True)


if __name__ == "__main__":
    main()
