"""Faults of the files that remember: a killed writer, a torn tail, a full disk, a failing sync."""

from __future__ import annotations

import errno
import json
import os
import re
import resource
import signal
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from unittest import mock

from fttui.engine.protocol.codec import encode
from fttui.engine.protocol.commands import AddNote
from fttui.engine.protocol.events import CommandFailed, LogEmitted, Record, StepFinished
from fttui.engine.protocol.states import RunState
from fttui.engine.run.control_log import ControlEntry, ControlReader, ControlWriter, Doorbell
from fttui.engine.run.journal import MAGIC, FrameReader, FrameWriter, frame
from fttui.engine.run.run_dir import RunDirectory
from fttui.engine.run.run_index import summarize
from fttui.engine.train import journal_writer
from tests.support.engine_double import make_run, step_event
from tests.support.waiting import until

from .book import Box, Figures, fault
from .emitter import begin, handed_over, publish_steps
from .invariants import check_journal, check_run, marks, require

STEPS_PER_S = 2000.0


@fault(
    "F07",
    "kill -9 the process that writes the journal, at 2000 records/s",
    "valid prefix, seq goes on, post-mortem readable; seen records lost 0",
    "a Python-buffered file loses acknowledged records",
)
def kill_writer(box: Box) -> Figures:
    trials = box.count(10, 100)
    run = make_run(box.folder / "runs")
    in_flight = [_kill_once(box, run) for _ in range(trials)]
    whole = check_journal(run)
    losing = sum(_buffered_file_loses(box, number) for number in range(trials))
    ours = (
        f"{trials} kills: seen records lost 0, seq 1…{len(whole)} whole; last 20 ms in memory: "
        f"≤ {max(in_flight)} records. Buffered file, same run: lost in {losing}/{trials}"
    )
    return Figures(ours, ok=True)


def _kill_once(box: Box, run: RunDirectory) -> int:
    """Kill one incarnation; how many steps it had handed over and not yet written."""
    reader = FrameReader(run.journal)
    before = len(list(reader))
    engine = box.stage.spawn(publish_steps, run, STEPS_PER_S)
    until(reader.read)
    time.sleep(box.rng.uniform(0.0, 0.06))
    seen = marks(FrameReader(run.journal))
    os.kill(engine.pid or 0, signal.SIGKILL)
    engine.join()
    whole = marks(FrameReader(run.journal))
    require(whole[: len(seen)] == seen and len(seen) > before, "a record that was seen is gone")
    dead = summarize(run)
    require(dead.state is RunState.LOST, f"the dead run shows as {dead.state}")
    return handed_over(run).read() - dead.step


def _buffered_file_loses(box: Box, number: int) -> bool:
    """The baseline: records whose `write` returned before the kill and that are not in the file."""
    file = box.folder / f"buffered-{number}"
    acked = Doorbell(file.with_suffix(".count"))
    writer = box.stage.spawn(_write_buffered, file)
    until(lambda: acked.read() > 0)
    time.sleep(box.rng.uniform(0.0, 0.06))
    os.kill(writer.pid or 0, signal.SIGKILL)
    writer.join()
    return len(list(FrameReader(file))) < acked.read()


def _write_buffered(file: Path) -> None:
    acked = Doorbell(file.with_suffix(".count"))
    with open(file, "wb") as out:
        out.write(MAGIC)
        for step in range(10**9):
            out.write(frame(_record(step)))
            acked.ring(step + 1)
            time.sleep(1.0 / STEPS_PER_S)


def _record(step: int) -> bytes:
    return encode(Record(seq=step, time=0.0, step=step, timeline=1, event=step_event(step)))


@fault(
    "F08",
    "a 200-record journal cut off at every byte",
    "the longest valid prefix, no exception, and it goes on from there",
    "torn JSON lines or pickles: the reader raises",
)
def truncate(box: Box) -> Figures:
    with tempfile.TemporaryDirectory(dir=_fast_folder(box)) as folder:
        return _truncate_in(Path(folder), box)


def _fast_folder(box: Box) -> Path:
    """In memory where there is such a place: every cut is synced."""
    memory = Path("/dev/shm")
    return memory if memory.is_dir() and os.access(memory, os.W_OK) else box.folder


def _truncate_in(folder: Path, box: Box) -> Figures:
    whole = folder / "whole.log"
    writer = FrameWriter(whole, folder / "lock")
    for step in range(200):
        writer.append(_record(step))
    writer.close()
    data = whole.read_bytes()
    ends = [*[start for start, _ in FrameReader(whole).read()][1:], len(data)]
    cuts: list[int] = list(range(len(data) + 1))
    if not box.long:
        cuts = sorted({*cuts[:40], *cuts[-450:], *box.rng.sample(cuts, 300)})
    failures = sum(not _survives(folder / "cut.log", data, ends, cut) for cut in cuts)
    return Figures(f"{len(cuts)} cuts, {failures} failures", ok=failures == 0)


def _survives(file: Path, data: bytes, ends: list[int], cut: int) -> bool:
    file.write_bytes(data[:cut])
    expected = sum(end <= cut for end in ends)
    try:
        read = list(FrameReader(file))
        writer = FrameWriter(file, file.with_suffix(".lock"))
        writer.append(b"next")
        writer.close()
        again = list(FrameReader(file))
    except Exception as error:  # noqa: BLE001 -- any exception is a failure of this cut
        print(f"F08 cut at {cut}: {error!r}")
        return False
    return len(read) == expected and writer.recovered == read and again == [*read, b"next"]


@fault(
    "F11",
    "the disk of the journal full for 2 s under load, then freed",
    "training not blocked, degraded state told, drops counted exactly",
    "transformers 5.24: an exception in the training loop ends the run",
)
def fill_journal(box: Box) -> Figures:
    rounds = box.count(1, 10)
    slowest, dropped = 0.0, 0
    for number in range(rounds):
        run = make_run(box.folder / f"runs-{number}")
        report = box.folder / f"report-{number}.json"
        engine = box.stage.spawn(_publish_on_full_disk, run, report)
        engine.join(60.0)
        require(engine.exitcode == 0, f"the engine ended with {engine.exitcode}")
        found = json.loads(report.read_text())
        slowest = max(slowest, found["slowest_s"])
        dropped += _check_drops(run, found["emitted"])
    ours = (
        f"{rounds} × 2 s full: steps blocked 0 (slowest hand-over {slowest * 1e6:.0f} µs), "
        f"{dropped} drops, all counted"
    )
    # A hand-over that waited for the disk would take the writer's pause of 0.5 s.
    return Figures(ours, ok=slowest < 0.4)


def _check_drops(run: RunDirectory, emitted: int) -> int:
    records = check_journal(run)
    kept = sum(isinstance(record.event, StepFinished) for record in records)
    texts = [r.event.text for r in records if isinstance(r.event, LogEmitted)]
    told = [int(n) for text in texts for n in re.findall(r"(\d+) events were lost", text)]
    require(len(told) == 1, f"the degraded state was told {len(told)} times")
    require(emitted - kept == told[0] > 0, f"{emitted - kept} lost, {told[0]} told")
    return told[0]


def _publish_on_full_disk(run: RunDirectory, report: Path) -> None:
    journal_writer._MAX_WAITING = 150
    writer, step = begin(run, hub=False)
    until(lambda: run.journal.stat().st_size > 100)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    limit = run.journal.stat().st_size + 4000
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    free_at, slowest = time.monotonic() + 2.0, 0.0
    while time.monotonic() < free_at:
        step += 1
        started = time.perf_counter()
        writer.emit(step_event(step), step=step, timeline=1)
        slowest = max(slowest, time.perf_counter() - started)
        time.sleep(0.005)
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    writer.close()
    report.write_text(json.dumps({"emitted": step, "slowest_s": slowest}))


@fault(
    "F13",
    "fsync fails with EIO, pages dropped as the kernel does, in journals and in a checkpoint",
    "never reported durable when it is not: false-durable 0",
    "retrying fsync: reports success for pages the kernel dropped (PostgreSQL before 12)",
)
def fail_sync(box: Box) -> Figures:
    rounds = box.count(30, 500)
    synced, false_durable = _journal_under_eio(box, rounds)
    refused = _control_under_eio(box, rounds)
    saves = _saves_under_eio(box)
    ours = (
        f"false-durable {false_durable} of {synced} syncs reported good; {refused} commands and "
        f"{saves} checkpoints refused, none of them visible"
    )
    return Figures(ours, ok=false_durable == 0)


class FailingDisk:
    """A disk behind a page cache: a failed sync drops what was written since the last one.

    Source: the behaviour of Linux since 4.13, https://wiki.postgresql.org/wiki/Fsync_Errors
    """

    def __init__(self, fails: Callable[[], bool]) -> None:
        self.durable: dict[int, bytearray] = {}
        self.failing = False
        self._dirty: dict[int, list[tuple[int, bytes]]] = {}
        self._fails = fails
        self._real = (os.write, os.pwrite, os.ftruncate, os.fdatasync)

    def write(self, descriptor: int, data: bytes) -> int:
        self._dirty.setdefault(descriptor, []).append((os.lseek(descriptor, 0, 1), bytes(data)))
        return self._real[0](descriptor, data)

    def pwrite(self, descriptor: int, data: bytes, offset: int) -> int:
        self._dirty.setdefault(descriptor, []).append((offset, bytes(data)))
        return self._real[1](descriptor, data, offset)

    def ftruncate(self, descriptor: int, length: int) -> None:
        self._real[2](descriptor, length)
        del self.durable.setdefault(descriptor, bytearray())[length:]
        kept = [(at, data[: length - at]) for at, data in self._dirty.get(descriptor, [])]
        self._dirty[descriptor] = [(at, data) for at, data in kept if at < length]

    def fdatasync(self, descriptor: int) -> None:
        dirty = self._dirty.pop(descriptor, [])
        if self.failing and self._fails():
            raise OSError(errno.EIO, "Input/output error")
        content = self.durable.setdefault(descriptor, bytearray())
        for at, data in dirty:
            content.extend(bytes(max(0, at + len(data) - len(content))))
            content[at : at + len(data)] = data

    def put_in(self) -> AbstractContextManager[object]:
        """A context in which this is the disk."""
        return mock.patch.multiple(
            os,
            write=self.write,
            pwrite=self.pwrite,
            ftruncate=self.ftruncate,
            fdatasync=self.fdatasync,
        )


def _journal_under_eio(box: Box, rounds: int) -> tuple[int, int]:
    """How often a sync was reported good, and how often the disk did not hold everything then."""
    disk = FailingDisk(lambda: box.rng.random() < 0.3)
    file = box.folder / "eio.log"
    good = false = 0
    with disk.put_in():
        writer = FrameWriter(file, box.folder / "eio.lock")
        disk.failing = True
        for step in range(rounds):
            for _ in range(box.rng.randint(0, 3)):
                writer.append(_record(step))
            try:
                writer.sync()
            except OSError:
                continue
            good += 1
            (content,) = disk.durable.values()
            false += bytes(content) != file.read_bytes()
        writer.close()
    return good, false


def _control_under_eio(box: Box, rounds: int) -> int:
    """Commands whose entry could not be synced; the engine must never see one of them."""
    run = make_run(box.folder / "control")
    disk = FailingDisk(lambda: box.rng.random() < 0.3)
    acked, refused = [], 0
    with disk.put_in():
        writer, reader = ControlWriter(run), ControlReader(run)
        disk.failing = True
        for number in range(rounds):
            entry = ControlEntry(
                seq=writer.last_seq + 1,
                time=0.0,
                id=f"c{number}",
                command=AddNote(text="x"),
                issuer="fault",
            )
            try:
                writer.append(entry)
                acked.append(entry.id)
            except OSError:
                refused += 1
        taken = [entry.id for entry in reader.take(reader.waiting())]
        writer.close()
    require(taken == acked, "the engine was given other commands than were acknowledged")
    return refused


def _saves_under_eio(box: Box) -> int:
    """Checkpoints refused because a file of theirs could not be synced, on a real 2-rank run."""
    run = box.stage.new_run()
    flag = run.path / "disk-fails"
    with box.stage.start(run, sabotage=partial(_fail_fsync, flag=flag)) as ranks:
        ranks.until_step(5)
        flag.touch()
        outcomes = [ranks.outcome(ranks.send(f"checkpoint try {n}")).event for n in range(2)]
        flag.unlink()
        ranks.finish()
        witnesses = [ranks.seen(0), ranks.seen(1)]
    check_run(run, witnesses=witnesses, reference=box.stage.reference())
    refused = sum(isinstance(event, CommandFailed) for event in outcomes)
    require(refused == len(outcomes), f"{len(outcomes) - refused} checkpoints on a failing disk")
    return refused


def _fail_fsync(_rank: int, *, flag: Path) -> None:
    fsync = os.fsync

    def failing(descriptor: int) -> None:
        if flag.exists():
            raise OSError(errno.EIO, "Input/output error")
        fsync(descriptor)

    os.fsync = failing  # type: ignore[assignment]  # the injected fault
