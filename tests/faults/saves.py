"""Faults of saving: a disk that is full, a process that dies in the middle."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

from fttui.engine.protocol.events import CheckpointSaved, CommandFailed, StepFinished
from fttui.engine.run.checkpoint_store import CheckpointStore

from .book import Box, Figures, fault
from .invariants import check_run, require


@fault(
    "F12",
    "disk full while a checkpoint is written, at many sizes, on rank 0, rank 1 and both",
    "the command is refused, training goes on, no bad target",
    "transformers 5.24: 3 of 3 runs died and left a torn folder that is picked",
)
def fill_disk(box: Box) -> Figures:
    run = box.stage.new_run()
    full = run.path / "disk-full"
    sizes = box.count(6, 20)
    with box.stage.start(run, sabotage=partial(_starve_saves, flag=full)) as ranks:
        ranks.until_step(5)
        outcomes = []
        for number in range(sizes):
            who = ((0,), (1,), (0, 1))[number % 3]
            _write_whole(full, json.dumps({"share": 0.98 * number / sizes, "ranks": who}))
            outcomes.append(ranks.outcome(ranks.send(f"checkpoint try {number}")).event)
        full.unlink()
        last = ranks.outcome(ranks.send("checkpoint with room again")).event
        require(not isinstance(last, CommandFailed), f"with room: {last}")
        ranks.finish()
        witnesses = [ranks.seen(0), ranks.seen(1)]
    refused = sum(isinstance(event, CommandFailed) for event in outcomes)
    check_run(run, witnesses=witnesses, reference=box.stage.reference())
    torn = _without_manifest(run.checkpoints)
    require(not torn, f"left behind: {torn}")
    ours = f"{sizes} sizes: refused {refused}, deaths 0, torn folders left 0"
    return Figures(ours, ok=refused == sizes)


def _without_manifest(folder: Path) -> list[str]:
    return [p.name for p in folder.iterdir() if not (p / "MANIFEST.json").exists()]


def _write_whole(path: Path, text: str) -> None:
    """Write a file that other processes read meanwhile, so that none finds it empty."""
    unfinished = path.with_suffix(".partial")
    unfinished.write_text(text)
    unfinished.replace(path)


def _starve_saves(rank: int, *, flag: Path) -> None:
    """While the flag is there, no file may grow beyond a share of the largest this rank writes."""
    from fttui.engine.train.checkpoint.checkpointer import Checkpointer

    save = Checkpointer.save

    def starved(self: Checkpointer, *args: Any) -> Any:
        plan = json.loads(flag.read_text()) if flag.exists() else {"ranks": []}
        if rank not in plan["ranks"]:
            return save(self, *args)
        files = self.ledger.all()[0].files
        mine = {n: f for n, f in files.items() if rank == 0 or n == f"rng-{rank}.pt"}
        limit = int(plan["share"] * max(entry.size_bytes for entry in mine.values()))
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
        try:
            return save(self, *args)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    Checkpointer.save = starved  # type: ignore[method-assign,assignment]  # the injected fault


@fault(
    "F14",
    "kill -9 at random points of a save",
    "what the ledger offers verifies and loads; bad restores 0",
    "transformers 5.24: a torn folder is the newest checkpoint and is chosen",
)
def kill_saves(box: Box) -> Figures:
    trials = box.count(12, 200)
    run = box.stage.new_run(train__devices=1, train__steps=6, checkpoint__every=2)
    report = box.folder / "report.json"
    sabotage = partial(_kill_in_save, trials=trials, seed=box.rng.random(), report=report)
    with box.stage.start(run, ranks=1, sabotage=sabotage) as engine:
        require(engine.join(600.0) == [0], "the engine failed")
        saved = len(engine.events(CheckpointSaved))
        steps = len(engine.events(StepFinished))
    found = json.loads(report.read_text())
    torn = len(_without_manifest(run.checkpoints))
    CheckpointStore(run).sweep()
    require(not _without_manifest(run.checkpoints), "a torn folder outlived the next start")
    check_run(run)
    require((saved, steps) == (4, 6), f"{saved} saves, {steps} steps after the kills")
    ours = (
        f"{trials} kills in saves of {found['typical_s'] * 1000:.0f} ms: torn {torn}, complete "
        f"{found['complete']}, bad restores {found['bad']} of {found['restores']} tried"
    )
    require(torn, "no save was torn: nothing was tested")
    return Figures(ours, ok=found["bad"] == 0)


def _kill_in_save(_rank: int, *, trials: int, seed: float, report: Path) -> None:
    """At the first save, save over and over in forks that are killed somewhere in it."""
    from fttui.engine.train.checkpoint.checkpointer import Checkpointer

    save = Checkpointer.save

    def killed(self: Checkpointer, *args: Any) -> Any:
        Checkpointer.save = save  # type: ignore[method-assign]  # only this once
        rng = random.Random(seed)
        saved = save(self, *args)
        typical_s = sorted(_in_fork(lambda: save(self, *args))[1] for _ in range(5))[2]
        found = {"typical_s": typical_s, "complete": 0, "restores": 0, "bad": 0}
        for trial in range(trials):
            before = len(self.ledger.all())
            _in_fork(lambda: save(self, *args), kill_after_s=rng.uniform(0.0, typical_s))
            found["complete"] += len(self.ledger.all()) - before
            if trial % 4 == 0:
                found["restores"] += 1
                found["bad"] += _in_fork(lambda: self.restore("last"))[0] != 0
        report.write_text(json.dumps(found))
        return saved

    Checkpointer.save = killed  # type: ignore[method-assign,assignment]  # the injected fault


def _in_fork(action: Any, kill_after_s: float | None = None) -> tuple[int, float]:
    """Do something in a copy of this process; its exit status and seconds."""
    started = time.monotonic()
    pid = os.fork()
    if pid == 0:
        try:
            action()
        except BaseException:  # noqa: BLE001 -- the copy must never go on as the engine
            os._exit(1)
        os._exit(0)
    if kill_after_s is not None:
        time.sleep(kill_after_s)
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    return status, time.monotonic() - started
