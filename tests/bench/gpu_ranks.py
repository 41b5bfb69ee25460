"""Two ranks on two GPUs: gradients as of one rank with twice the batch, control exact and agreed.

    python -m tests.bench.gpu_ranks [--device cpu]

Tiny models, the whole engine. Prints a table; every line must say yes.
"""

from __future__ import annotations

import argparse
import faulthandler
import hashlib
import math
import multiprocessing
import os
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import fttui.engine.train.session as session
from fttui.engine.protocol.events import CommandApplied, LogEmitted, RunStarted, StepFinished
from fttui.engine.protocol.states import RunState
from fttui.engine.run.run_dir import RunDirectory
from fttui.engine.train.controlled_session import SessionOutcome
from fttui.engine.train.distributed.place import RankPlace, leave_place, take_place
from fttui.engine.train.trainers.text import TextTrainer
from tests.support.odd_steps import odd
from tests.support.ports import free_port
from tests.support.training import Played, Script, new_run, play, read_records

RANKS = 2
TASKS = ("sft", "contrastive", "dpo", "kto")
REFUSED = "sft, a NaN on rank 1"
CLOSE = 2e-5
"""Relative: fp32 sums in another order."""
LIMIT_S = 150
"""What takes longer hangs; it shows where."""


def main() -> None:
    """Play every run and print what is equal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    options = parser.parse_args()
    fast = "on" if options.device == "cuda" else "static"
    with tempfile.TemporaryDirectory() as folder:
        runs = Runs(Path(folder), fast)
        runs.play_all(options.device)
        gradients(runs)
        control(runs)


class Runs:
    """Runs by name, for one rank and for two."""

    def __init__(self, folder: Path, fast: str) -> None:
        self._folder = folder
        self._alone: dict[str, tuple[RunDirectory, Script]] = {}
        self._together: dict[str, tuple[RunDirectory, Script]] = {}
        fp32: dict[str, Any] = {"model__precision": "fp32", "adapter__dropout": 0.0}
        same: dict[str, Any] = {
            "model__quantize": "nf4" if fast == "on" else "none",
            "train__deterministic": "true",
            "checkpoint__every": 2,
        }
        for task in TASKS:
            self._add(f"{task}, 1 rank", task, 1, fast=fast, **fp32)
            self._add(f"{task}, off", task, 2, fast="off", **fp32)
            self._add(f"{task}, fast", task, 2, fast=fast, **fp32)
            self._add(f"{task}, straight", task, 2, fast=fast, **same)
            self._add(f"{task}, rolled back", task, 2, Script({5: ["rollback 2"]}), fast, **same)
            released = Script({3: ["pause release"]}, states={RunState.PAUSED: ["resume"]})
            self._add(f"{task}, released", task, 2, released, fast, **same)
        steered = Script({2: ["lr scale 0.5", "clip 0.01"], 4: ["skip 1"]})
        self._add("sft, steered", "sft", 2, steered, fast, **same)
        self._add(REFUSED, "sft", 2, fast=fast, **same)

    def _add(
        self, name: str, task: str, ranks: int, script: Script | None = None, fast: str = "",
        **sets: Any,
    ) -> None:  # fmt: skip
        folder = self._folder / name.replace(", ", "-").replace(" ", "-")
        folder.mkdir()
        sets |= {"train__batch": 4 // ranks, "train__devices": ranks, "train__fast": fast}
        kind = self._alone if ranks == 1 else self._together
        kind[name] = new_run(folder, task, **sets), script or Script()

    def play_all(self, device: str) -> None:
        """All runs of one rank in a process, those of two in two processes beside it."""
        port = free_port()
        context = multiprocessing.get_context("spawn")
        go = [context.Event(), context.Event()]  # a device is for one at a time
        ranks = [(rank, RANKS, port, device, go[0], self._together) for rank in range(RANKS)]
        made = [context.Process(target=_be_rank, args=arguments)
                for arguments in [*ranks, (0, 1, port, device, go[1], self._alone)]]  # fmt: skip
        for process in made:
            process.start()
        go[0].set()
        for process in made[:RANKS]:
            process.join()
        go[1].set()
        made[-1].join()
        print("exit codes", [process.exitcode for process in made], flush=True)

    @property
    def names(self) -> list[str]:
        """All of them."""
        return [*self._alone, *self._together]

    def played(self, name: str) -> Played:
        """What a run left behind."""
        run, _ = (self._alone | self._together)[name]
        return Played(run, SessionOutcome(RunState.FINISHED, None), read_records(run))

    def adapters(self, name: str) -> list[str]:
        """Hash of the adapter at the end, by rank."""
        run, _ = self._together[name]
        files = [run.path / f"adapter-{rank}" for rank in range(RANKS)]
        return [file.read_text() if file.exists() else f"none of {file}" for file in files]


def _be_rank(
    rank: int, ranks: int, port: int, device: str, go: Any,
    runs: dict[str, tuple[RunDirectory, Script]],
) -> None:  # fmt: skip
    faulthandler.dump_traceback_later(LIMIT_S, exit=True)
    go.wait()
    if device == "cpu":
        os.environ.update(ACCELERATE_USE_CPU="true", CUDA_VISIBLE_DEVICES="")
    if ranks > 1:
        os.environ.update(
            RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks),
            MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
        )  # fmt: skip
    place = take_place(60)
    for name, (run, script) in runs.items():
        spoiled = name == REFUSED and rank == 1
        with odd(TextTrainer, 3, math.nan) if spoiled else nullcontext():
            _play(run, script, place)
    leave_place()


def _play(run: RunDirectory, script: Script, place: RankPlace) -> None:
    built: list[Any] = []
    patched: Any = session
    build: Callable[..., Any] = patched.build_trainer

    def remember(*arguments: Any) -> Any:
        built.append(build(*arguments))
        return built[-1]

    patched.build_trainer = remember
    try:
        play(run, script, place=place)
    finally:
        patched.build_trainer = build
    state = hashlib.sha256()
    for name, tensor in sorted(built[0].model.state_dict().items()):
        if "lora" in name:
            state.update(tensor.detach().float().cpu().numpy().tobytes())
    (run.path / f"adapter-{place.rank}").write_text(state.hexdigest())


def say(what: str, holds: bool, note: object = "") -> None:
    """A line of the table."""
    print(f"{what:62} {'yes' if holds else 'NO'}  {note}", flush=True)


def gradients(runs: Runs) -> None:
    """Loss and gradient norm of every step, against one rank with twice the batch."""
    for name in runs.names:
        played = runs.played(name)
        mode = [event.facts["fast mode"] for event in played.events(RunStarted) if event.facts]
        said = [e.text for e in played.events(LogEmitted) if "fast mode" in e.text]
        say(f"mode: {name}", not said, [*mode[-1:], *said])
    for task in TASKS:
        several = runs.played(f"{task}, fast")
        for other in ("off", "1 rank"):
            apart = _apart(several, runs.played(f"{task}, {other}"))
            say(f"{task}: two ranks in fast mode = {other}", apart < CLOSE, f"{apart:.1e}")


def _apart(first: Played, second: Played) -> float:
    steps, others = first.events(StepFinished), second.events(StepFinished)
    if len(steps) != len(others):
        return float("inf")
    return max(
        max(
            abs(a.loss_or_nan / b.loss_or_nan - 1), abs((a.grad_norm or 0) / (b.grad_norm or 1) - 1)
        )
        for a, b in zip(steps, others, strict=True)
    )


def control(runs: Runs) -> None:
    """Rollback and released memory repeat the straight run; commands are applied on all ranks."""
    for task in TASKS:
        straight = runs.played(f"{task}, straight").losses()
        for way in ("rolled back", "released"):
            say(f"{task}: {way} = straight", runs.played(f"{task}, {way}").losses() == straight)
    for name in runs._together:
        first, second = runs.adapters(name)
        say(f"same adapter on both ranks: {name}", first == second)
    refused = runs.played(REFUSED)
    skipped = [step for step, event in refused.at(StepFinished) if event.skipped]
    say("a NaN on one rank is refused by both", skipped == [3], skipped)
    steered, straight = runs.played("sft, steered"), runs.played("sft, straight").losses()
    applied = [event.command for event in steered.events(CommandApplied)]
    say("lr, clip and skip applied", len(applied) == 3, applied)
    losses = steered.losses()
    say(
        "… from the next update on",
        len(losses) > 3 and losses[3] == straight[3] and losses[4] != straight[4],
    )


if __name__ == "__main__":
    main()
