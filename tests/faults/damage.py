"""Faults of the disk underneath: flipped bits, and a power loss that takes what was not synced."""

from __future__ import annotations

import json
import os
import random
import resource
from pathlib import Path
from typing import Any

from fttui.engine.errors import CheckpointError
from fttui.engine.hub.__main__ import main as serve_hub
from fttui.engine.protocol.codec import encode
from fttui.engine.protocol.events import Record
from fttui.engine.protocol.requests import Accepted
from fttui.engine.run.checkpoint_store import CheckpointStore, Manifest, seal_files
from fttui.engine.run.journal import FrameReader, FrameWriter, frame
from fttui.engine.run.run_dir import RunDirectory
from tests.support.engine_double import make_run, step_event
from tests.support.waiting import until

from .audience import kill
from .book import Box, Figures, fault
from .emitter import begin, handed_over
from .invariants import control_entries, require
from .stage import read_journal
from .viewers import Wire, command, hub_of

_ROOMY_BYTES = 2**45


@fault(
    "F09",
    "one bit flipped in the journal, or in a file of a checkpoint",
    "every flip detected, the file named",
    "safetensors and torch.save: 0 % of flips in the data detected",
)
def flipped_bits(box: Box) -> Figures:
    count = box.count(200, 1000)
    run = make_run(box.folder / "runs")
    journal = FrameWriter(run.journal, run.journal_lock)
    payloads = [encode(_record(seq)) for seq in range(1, 201)]
    journal.append(*payloads)
    journal.close()
    for _ in range(count):
        _flip_in_journal(run, payloads, box.rng)
    manifest = _checkpoint(run, box.rng)
    named = sum(_flip_in_checkpoint(run, manifest, box.rng) for _ in range(count))
    CheckpointStore(run).verify(manifest)
    ours = f"journal {count} of {count}, checkpoint files {named} of {count} detected and named"
    return Figures(ours, ok=named == count)


def _record(seq: int) -> Record:
    return Record(seq=seq, time=1.7e9 + seq, step=seq, timeline=1, event=step_event(seq))


def _flip(path: Path, rng: random.Random) -> tuple[int, bytes]:
    """Flip one bit of a file; where, and the file as it was."""
    whole = path.read_bytes()
    at = rng.randrange(len(whole))
    damaged = bytearray(whole)
    damaged[at] ^= 1 << rng.randrange(8)
    path.write_bytes(damaged)
    return at, whole


def _flip_in_journal(run: RunDirectory, payloads: list[bytes], rng: random.Random) -> None:
    at, whole = _flip(run.journal, rng)
    read = list(FrameReader(run.journal))
    untouched, end = [], 8
    for payload in payloads if at >= end else ():
        end += len(frame(payload))
        if at < end:
            break
        untouched.append(payload)
    run.journal.write_bytes(whole)
    require(read == untouched, f"a flip at byte {at} was read as {len(read)} records")


def _checkpoint(run: RunDirectory, rng: random.Random) -> Manifest:
    ledger = CheckpointStore(run)
    folder = ledger.path("step-1")
    folder.mkdir()
    for name in ("adapter.safetensors", "optimizer.pt", "rng-0.pt", "state.json"):
        (folder / name).write_bytes(rng.randbytes(rng.randint(2_000, 20_000)))
    manifest = Manifest(
        name="step-1",
        step=1,
        timeline=1,
        time=1.0,
        world_size=1,
        incarnation=1,
        files=seal_files(folder),
    )
    ledger.commit(manifest)
    return manifest


def _flip_in_checkpoint(run: RunDirectory, manifest: Manifest, rng: random.Random) -> bool:
    ledger = CheckpointStore(run)
    file = ledger.path(manifest.name) / rng.choice(sorted(manifest.files))
    _, whole = _flip(file, rng)
    try:
        ledger.verify(manifest)
    except CheckpointError as error:
        return file.name in str(error)
    finally:
        file.write_bytes(whole)
    return False


@fault(
    "F10",
    "power loss: everything not synced is gone",
    "journal loses ≤ 1 s of records, acknowledged commands 0",
    "SQLite WAL NORMAL: may roll back committed transactions",
)
def power_loss(box: Box) -> Figures:
    rounds, lost_s, lost_records, acked = box.count(1, 50), [], [], 0
    for number in range(rounds):
        run = make_run(box.folder / f"runs-{number}")
        seconds, records, commands = _lose_power(box, run)
        lost_s.append(seconds)
        lost_records.append(records)
        acked += commands
    ours = (
        f"{rounds}×: at most {max(lost_records)} records or {max(lost_s):.2f} s lost, "
        f"of {acked} acknowledged commands 0"
    )
    # A second between syncs, and what the sync itself and the writer's turn take.
    return Figures(ours, ok=max(lost_s) <= 1.5)


def _lose_power(box: Box, run: RunDirectory) -> tuple[float, int, int]:
    engine = box.stage.spawn(_publish_noting_syncs, run)
    until(run.engine.exists)
    hub = box.stage.spawn(_serve_noting_syncs, run)
    endpoint = hub_of(run)
    wire = Wire(endpoint.requests)
    ids: list[str] = []
    goal = box.rng.randint(200, 500)
    while handed_over(run).read() < goal:
        message = command(f"power-{len(ids)}", "note x")
        wire.submit(message)
        if isinstance(wire.answer(5.0), Accepted):
            ids.append(message.id)
    kill(engine)
    kill(hub)
    wire.close()
    before = read_journal(run)
    for path in (run.journal, run.control):
        os.truncate(path, _synced_bytes(path))
    after = read_journal(run)
    require([r.seq for r in after] == list(range(1, len(after) + 1)), "I1: a gap")
    kept = {entry.id for entry in control_entries(run)}
    require(kept >= set(ids), f"acknowledged and lost: {set(ids) - kept}")
    seconds = before[-1].time - after[-1].time if len(after) < len(before) else 0.0
    return seconds, len(before) - len(after), len(ids)


def _synced_bytes(path: Path) -> int:
    """How long the file was when it was synced last."""
    note = path.with_suffix(".synced")
    return int(json.loads(note.read_text())) if note.exists() else 0


def _note_syncs(*paths: Path) -> None:
    """Write down beside a file how long it was when it was synced."""
    sync = os.fdatasync

    def noting(file: Any) -> None:
        info = os.fstat(file)
        sync(file)
        for path in paths:
            if path.exists() and path.stat().st_ino == info.st_ino:
                temporary = path.with_suffix(".synced-new")
                temporary.write_text(str(info.st_size))
                temporary.replace(path.with_suffix(".synced"))

    os.fdatasync = noting  # type: ignore[assignment]  # mypy compares names of parameters too


def _publish_noting_syncs(run: RunDirectory) -> None:
    import time

    _note_syncs(run.journal)
    journal_writer, step = begin(run, hub=False)
    count = handed_over(run)
    while True:
        step += 1
        journal_writer.emit(step_event(step), step=step, timeline=1)
        count.ring(step)
        time.sleep(0.005)


def _serve_noting_syncs(run: RunDirectory) -> None:
    _note_syncs(run.control)
    # The training stack that the stage has loaded does not fit into what a hub allows itself.
    resource.setrlimit(resource.RLIMIT_AS, (_ROOMY_BYTES, _ROOMY_BYTES))
    serve_hub([str(run.path)])
