"""A fault at every write, sync, rename and removal of a run, one after the other."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from fttui.engine.errors import FttuiError, StateNotSaved
from fttui.engine.protocol.events import RunEnded, RunStarted, StepFinished
from fttui.engine.protocol.states import RunState
from fttui.engine.run.checkpoint_store import CheckpointStore
from fttui.engine.run.run_dir import RunDirectory
from fttui.engine.run.run_index import list_runs, summarize
from fttui.tui.connection.engine_process import checkpoint_to_resume
from tests.support.counting_run import STEPS, Desk, count_to_the_end, new_counting_run
from tests.support.crash_image import DiskImage, Loss
from tests.support.disk_double import KILLED, DiskDouble, Kind, Mode, Operation

from .book import Box, Figures, fault
from .invariants import (
    Broken,
    check_checkpoints,
    check_commands,
    check_journal,
    check_steps,
    control_entries,
    require,
)
from .stage import losses, read_journal

CRASHED = 99
"""Exit code of a half that ended with a traceback."""
_LONGEST_S = 120


@dataclass(frozen=True)
class Half:
    """One process of a run: what it is sent by step, and whether it resumes."""

    commands: dict[int, list[str]]
    resumes: bool

    def play(self, root: Path, disk: DiskDouble, notes: Path) -> int:
        """Be the engine and the hub in a process of its own; return its exit code.

        Every command that is acknowledged is appended to `notes`, and at the end the operations.
        """
        pid = os.fork()
        if pid == 0:
            signal.alarm(_LONGEST_S)
            with open(notes.with_suffix(".log"), "ab") as log:
                for stream in (1, 2):
                    os.dup2(log.fileno(), stream)
            os._exit(self._play(root, disk, notes))
        _, status = os.waitpid(pid, 0)
        return os.waitstatus_to_exitcode(status)

    def _play(self, root: Path, disk: DiskDouble, notes: Path) -> int:
        def acknowledged(id_: str) -> None:
            with open(notes, "a") as file:
                file.write(f"{disk.count} {id_}\n")

        code = CRASHED
        try:
            with disk.inserted():
                code = self._count(root, acknowledged)
        except BaseException:  # noqa: BLE001 -- the copy must never go on as the harness
            traceback.print_exc()
        sys.stderr.flush()
        log = [(op.kind.value, op.name, op.data.hex(), op.offset, op.target) for op in disk.log]
        notes.with_suffix(".json").write_text(json.dumps({"count": disk.count, "log": log}))
        return code

    def _count(self, root: Path, acknowledged: object) -> int:
        try:
            run = the_run(root) if self.resumes else new_counting_run(root)
        except OSError:
            return FttuiError.exit_code  # as `fttui run` refuses to begin, and says why
        desk = Desk(run, {step: list(texts) for step, texts in self.commands.items()}, acknowledged)  # type: ignore[arg-type]
        resume = checkpoint_to_resume(run, None) if self.resumes else None
        return count_to_the_end(desk, resume=resume)


FIRST = Half(
    {
        2: ["lr scale 0.5"],
        3: ["checkpoint pin", "note one"],
        5: ["rollback 4", "clip 0.5"],
        7: ["stop"],
    },
    resumes=False,
)
SECOND = Half({8: ["lr reset", "checkpoint"]}, resumes=True)
LAST = Half({}, resumes=True)


def the_run(root: Path) -> RunDirectory:
    """The one run in a folder."""
    (found,) = [path for path in root.iterdir() if path.is_dir()]
    return RunDirectory(found)


@dataclass(frozen=True)
class Recording:
    """A run without a fault: what each half did, and the loss of every step."""

    counts: list[int]
    logs: list[list[Operation]]
    promises: list[list[tuple[int, str]]]
    """By half: (operations before, id) of each acknowledged command."""
    reference: dict[int, float]


def record(folder: Path) -> Recording:
    """Play both halves and remember every operation."""
    root = folder / "recorded"
    root.mkdir()
    counts, logs, promises = [], [], []
    for number, half in enumerate((FIRST, SECOND)):
        notes = folder / f"recorded-{number}"
        code = half.play(root, DiskDouble(root, record=True), notes)
        require(code == 0, f"without a fault: exit code {code}: {log_of(notes)}")
        found = json.loads(notes.with_suffix(".json").read_text())
        counts.append(found["count"])
        logs.append([_operation(*row) for row in found["log"]])
        promises.append(promises_in(notes))
    return Recording(counts, logs, promises, losses(read_journal(the_run(root))))


def _operation(kind: str, name: str, data: str, offset: int, target: str) -> Operation:
    return Operation(Kind(kind), name, bytes.fromhex(data), offset, target)


def promises_in(notes: Path) -> list[tuple[int, str]]:
    """What was acknowledged, and after how many operations."""
    if not notes.exists():
        return []
    rows = [line.split() for line in notes.read_text().splitlines()]
    return [(int(count), id_) for count, id_ in rows]


def log_of(notes: Path) -> str:
    """The end of what a half printed."""
    file = notes.with_suffix(".log")
    return file.read_text(errors="replace")[-1500:] if file.exists() else ""


@fault(
    "F37",
    "an I/O error, a full disk, a kill and a torn write at every operation on the disk of a run "
    "with checkpoints, rollback and resume",
    "it ends truthfully, opens, resumes, and has every acknowledged command once",
    "SQLite's own test of itself; no trainer is tested so",
)
def fail_every_operation(box: Box) -> Figures:
    found = record(box.folder)
    every = [
        (half, index, mode)
        for half, log in enumerate(found.logs)
        for index, operation in enumerate(log)
        for mode in Mode
        if not (mode is Mode.TORN and operation.kind is not Kind.WRITE)
    ]
    return _try_each(box, found, every, _fail_once, f"faults at {sum(found.counts)} operations")


Happening = TypeVar("Happening", Mode, Loss)
"""What happens at an operation: a fault of the disk, or a loss of power."""


def _try_each(
    box: Box,
    found: Recording,
    every: list[tuple[int, int, Happening]],
    try_once: Callable[[Path, int, int, Happening, Recording], str],
    what: str,
) -> Figures:
    """Try what may happen at each operation (half, index); in the short form 8, by the seed."""
    chosen = every if box.long else sorted(box.rng.sample(every, 8), key=str)
    outcomes: Counter[str] = Counter()
    broken: list[str] = []
    for number, (half, index, kind) in enumerate(chosen):
        folder = box.folder / f"{number}"
        folder.mkdir()
        try:
            outcomes[try_once(folder, half, index, kind, found)] += 1
        except (Broken, FttuiError, AssertionError) as error:
            place = _at(found, half, index)
            broken.append(f"half {half + 1}, {kind.name} at {index} ({place}): {error}")
            print(broken[-1], flush=True)
            continue
        shutil.rmtree(folder)
    told = ", ".join(f"{text} {count}" for text, count in sorted(outcomes.items()))
    ours = f"{len(chosen)} {what}: {told}; broken {len(broken)}"
    return Figures(f"{ours} {broken[:1] or ''}".strip(), ok=not broken)


def _at(found: Recording, half: int, index: int) -> str:
    if index == len(found.logs[half]):
        return "the end"
    operation = found.logs[half][index]
    return f"{operation.kind.value} {operation.name.partition('/')[2]}"


def _fail_once(folder: Path, half: int, index: int, mode: Mode, found: Recording) -> str:
    root = folder / "runs"
    root.mkdir()
    promised: list[str] = []
    for number, each in enumerate((FIRST, SECOND)[: half + 1]):
        notes = folder / f"half-{number}"
        hit = number == half
        disk = DiskDouble(root, fails_at=index, mode=mode) if hit else DiskDouble(root)
        code = each.play(root, disk, notes)
        promised += [id_ for _, id_ in promises_in(notes)]
        require(code != CRASHED, f"a traceback: {log_of(notes)}")
        require(code >= 0, f"ended by signal {-code}: {log_of(notes)}")
    runs = list_runs(root)
    if not [run for run in runs if not run.unreadable]:
        require(half == 0 and not promised, "the run cannot be read")
        return "no run was made"
    run = the_run(root)
    if code != KILLED:
        check_end(run, code, starts=half + 1)
    return conclude(folder, run, promised, found.reference)


def conclude(
    folder: Path,
    run: RunDirectory,
    promised: list[str],
    reference: dict[int, float],
    *,
    may_be_damaged: bool = False,
) -> str:
    """Open and resume a run after a fault, without another one, and check everything."""
    summarize(run)
    try:
        checkpoint_to_resume(run, None)
    except FttuiError as refusal:
        known = CheckpointStore(run).all()
        require(may_be_damaged or not known, f"it has checkpoints, but: {refusal}")
        return "told what is missing"
    notes = folder / "last"
    root = run.path.parent
    code = LAST.play(root, DiskDouble(root), notes)
    require(code == 0, f"resumed with exit code {code}: {log_of(notes)}")
    records = check_journal(run)
    check_commands(run, records, promised, [])
    check_steps(records, reference)
    check_checkpoints(run)
    check_end(run, code, starts=0)
    require(max(losses(records)) == STEPS, "it did not finish")
    left = [p.name for p in run.path.rglob(".*.tmp")]
    require(not left, f"left behind: {left}")
    torn = [p.name for p in run.checkpoints.iterdir() if not (p / "MANIFEST.json").exists()]
    require(not torn, f"torn checkpoints left: {torn}")
    return "resumed and finished"


def check_end(run: RunDirectory, code: int, *, starts: int) -> None:
    """What an engine said with its exit code is what is on disk.

    With a number of starts, an end counts only if the journal has that many.
    """
    records = read_journal(run)
    begun = [n for n, r in enumerate(records) if isinstance(r.event, RunStarted)]
    if starts:
        records = records[begun[starts - 1] :] if len(begun) >= starts else []
    ends = [r.event for r in records if isinstance(r.event, RunEnded)]
    if code == 0:
        require(ends, "exit code 0 without an end in the journal")
        require(ends[-1].state in (RunState.FINISHED, RunState.STOPPED), f"0, but {ends[-1].state}")
        steps = [r for r in records if isinstance(r.event, StepFinished)]
        newest = CheckpointStore(run).all()
        if steps:
            require(newest, "exit code 0 without a checkpoint")
            CheckpointStore(run).verify(newest[-1])
            require(newest[-1].step == steps[-1].step, "the last step is not in the checkpoint")
    elif ends and code == StateNotSaved.exit_code:
        require(ends[-1].state is RunState.UNSAVED, f"exit code {code}, but {ends[-1].state}")


@fault(
    "F38",
    "a power cut after every operation: all kept, unsynced content lost, unsynced names lost too, "
    "some of both lost",
    "every image opens and resumes, or the missing thing is named; acknowledged commands 0 lost",
    "Hugging Face checkpoints are not synced: an image may hold empty files under their names",
)
def cut_power(box: Box) -> Figures:
    found = record(box.folder)
    every = [
        (half, index, loss)
        for half, log in enumerate(found.logs)
        for index in range(len(log) + 1)
        for loss in Loss
    ]
    return _try_each(box, found, every, _open_image, "images")


def _open_image(folder: Path, half: int, index: int, loss: Loss, found: Recording) -> str:
    root = folder / "runs"
    root.mkdir()
    image = DiskImage()
    for number in range(half):
        image.apply(found.logs[number])
    image.apply(found.logs[half][:index])
    image.write(root, loss, random.Random(f"{half} {index}"))
    promised = [id_ for number in range(half) for _, id_ in found.promises[number]]
    promised += [id_ for count, id_ in found.promises[half] if count <= index]
    if not [run for run in list_runs(root) if not run.unreadable]:
        require(not promised, "acknowledged commands, and no run")
        return "no run was made yet"
    run = the_run(root)
    lost = set(promised) - {entry.id for entry in control_entries(run)}
    require(not lost, f"acknowledged and not on disk: {lost}")
    damaged = loss is Loss.SOME
    return conclude(folder, run, promised, found.reference, may_be_damaged=damaged)
