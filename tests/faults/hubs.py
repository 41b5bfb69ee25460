"""Faults of the hub and of the way to it: killed, starved, cut off, mistaken for another."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from fttui.engine.errors import NotOwner
from fttui.engine.hub.launch import launch_hub
from fttui.engine.protocol.events import Record, StepFinished
from fttui.engine.protocol.requests import Accepted
from fttui.engine.run.processes.marks import (
    Endpoint,
    EngineMark,
    ProcessMark,
    read_endpoint,
    read_engine,
    runtime_folder,
    write_mark,
)
from fttui.engine.run.run_dir import RunDirectory
from fttui.tui.view_model.connection_port import Link
from tests.support import engine_double
from tests.support.engine_double import make_run
from tests.support.waiting import until

from .book import Box, Figures, fault, spread
from .emitter import begin, publish_steps
from .invariants import check_history, check_journal, check_run, control_entries, require
from .proxy import CuttableLink
from .stage import Ranks, outcomes, read_journal
from .viewers import Viewer, Wire, command, hub_of, until_async

STEPS_PER_S = 200.0


@contextlib.contextmanager
def _publishing(box: Box, run: RunDirectory, per_s: float = STEPS_PER_S) -> Iterator[int]:
    """An engine that journals and keeps a hub, killed at the end with its hub."""
    engine = box.stage.spawn(publish_steps, run, per_s, True)
    try:
        until(lambda: (mark := read_engine(run)) is not None and mark.pid == engine.pid)
        yield engine.pid or 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(engine.pid or 0, signal.SIGKILL)
        engine.join()
        _kill_hub(run)


def _kill_hub(run: RunDirectory) -> bool:
    endpoint = read_endpoint(run)
    if endpoint is None or not endpoint.alive:
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(endpoint.pid, signal.SIGKILL)
    return True


@fault(
    "F05",
    "100 raw connections to a hub that may open 64 files",
    "training alive, steps lost 0, hub back",
    "libzmq in the trainer: SIGABRT",
)
def exhaust_descriptors(box: Box) -> Figures:
    rounds = box.count(1, 20)
    run = make_run(box.folder / "runs")
    down_s = [_starve_once(box, run) for _ in range(rounds)]
    gap_s = _longest_silence(check_journal(run))
    ours = f"{rounds}×: steps lost 0, hub down s {spread(down_s)}, longest step gap {gap_s:.2f} s"
    return Figures(ours, ok=True)


def _starve_once(box: Box, run: RunDirectory) -> float:
    """Crowd one hub out; seconds until another one serves."""
    box.stage.spawn(_launch_starved_hub, run).join()
    hub = hub_of(run)
    with _publishing(box, run) as engine:
        until(lambda: len(read_journal(run)) > 20)
        crowd = _connect(Path(hub.folder) / "req", 100)
        started = time.monotonic()
        until(lambda: (read_endpoint(run) or hub) != hub, 60.0)
        seconds = time.monotonic() - started
        for one in crowd:
            one.close()
        head = read_journal(run)[-1].seq
        until(lambda: read_journal(run)[-1].seq > head)
        require(os.path.exists(f"/proc/{engine}"), "the engine is gone")
    return seconds


def _launch_starved_hub(run: RunDirectory) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    launch_hub(run)


def _connect(path: Path, count: int) -> list[socket.socket]:
    """Raw connections that say nothing, as many as are let in."""
    crowd = []
    for _ in range(count):
        one = socket.socket(socket.AF_UNIX)
        one.settimeout(1.0)
        try:
            one.connect(str(path))
        except OSError:
            one.close()
            break
        crowd.append(one)
    return crowd


def _longest_silence(records: list[Record]) -> float:
    times = [record.time for record in records if isinstance(record.event, StepFinished)]
    return max((later - sooner for sooner, later in pairwise(times)), default=0.0)


@fault(
    "F06",
    "hub kill -9 under 200 records/s with viewers",
    "viewers resume; gaps 0, doubles 0",
    "a ZeroMQ subscriber: one hole of 49 104 records",
)
def kill_hub(box: Box) -> Figures:
    kills = box.count(4, 100)
    run = make_run(box.folder / "runs")
    with _publishing(box, run):
        resumed_s, seen = asyncio.run(_resume_after_kills(box, run, kills))
    check_journal(run)
    for history in seen:
        check_history(run, history)
    ours = f"{kills} kills, 2 viewers: resume s {spread(resumed_s)}; gaps 0, doubles 0"
    return Figures(ours, ok=True)


async def _resume_after_kills(
    box: Box, run: RunDirectory, kills: int
) -> tuple[list[float], list[list[int]]]:
    viewers = [Viewer(run), Viewer(run)]
    await until_async(lambda: all(v.link is Link.LIVE and v.seen for v in viewers))
    resumed_s = []
    for _ in range(kills):
        await asyncio.sleep(box.rng.uniform(0.0, 0.3))
        require(_kill_hub(run), "there was no hub to kill")
        resumed_s.append(await _seconds_to_news(viewers, time.time()))
        await until_async(lambda: all(v.link is Link.LIVE for v in viewers))
    seen = [viewer.marks() for viewer in viewers]
    for viewer in viewers:
        await viewer.close()
    return resumed_s, seen


async def _seconds_to_news(viewers: list[Viewer], at: float) -> float:
    """Until every viewer has a record that was made after a moment."""
    await until_async(lambda: all(v.seen[-1].time > at + 0.05 for v in viewers))
    return time.time() - at


@fault(
    "F19",
    "commands of 3 viewers, 30 % sent twice, connections dropped at random, 2 ranks",
    "doubles 0, lost 0, same order and step on all ranks",
    "fire and forget over a socket: lost or applied twice",
)
def repeat_commands(box: Box) -> Figures:
    count = box.count(60, 1000)
    run = box.stage.new_run(train__steps=100_000, checkpoint__every=0)
    with box.stage.start(run, hub=True) as ranks:
        ranks.until_step(2)
        acked, latency = _converse(box, ranks, count)
        for rank in (0, 1):
            ranks.outcome(acked[-1], rank)
        for rank in (0, 1):
            ranks.signal(signal.SIGTERM, rank)
        require(ranks.join() == [0, 0], "a rank failed")
        witnesses = [ranks.seen(0), ranks.seen(1)]
    check_run(run, acked=acked, witnesses=witnesses)
    require(len(acked) == count == len(control_entries(run)), "lost or doubled on the way")
    steps = spread([float(value) for value in latency], 0)
    ours = f"{count} commands: doubles 0, lost 0, ranks equal; ack → applied steps {steps}"
    _kill_hub(run)
    return Figures(ours, ok=True)


def _converse(box: Box, ranks: Ranks, count: int) -> tuple[list[str], list[int]]:
    """Send commands until each is acknowledged; ids in order, and steps until applied."""
    wires = [Wire(hub_of(ranks.run).requests) for _ in range(3)]
    acked: list[str] = []
    sent_at: dict[str, int] = {}
    for number in range(count):
        id_, wire = f"many-{number}", box.rng.choice(wires)
        message = command(id_, box.rng.choice(["lr scale 1.0", "note x", "clip 0.5"]))
        sent_at[id_] = ranks.step()
        answers = 0
        while not answers:
            wire.submit(message)
            if box.rng.random() < 0.3:
                wire.submit(message)
            if box.rng.random() < 0.1:
                wire.reconnect()
                continue
            while (reply := wire.answer(0.002 if answers else 5.0)) is not None:
                if reply.id == id_:
                    require(isinstance(reply, Accepted), f"refused: {reply}")
                    answers += 1
        acked.append(id_)
    for wire in wires:
        wire.close()
    ranks.outcome(acked[-1])
    found = {id_: records[0].step for id_, records in outcomes(ranks.seen()).items()}
    return acked, [found[id_] - sent_at[id_] for id_ in acked if id_ in found]


@fault(
    "F20",
    "the link cut after every byte between a command and its answer, then a retry",
    "the same answer, one effect",
    "retry without an id: applied twice",
)
def cut_link(box: Box) -> Figures:
    run = make_run(box.folder / "runs")
    with _double(run):
        hub = hub_of(run)
        link = CuttableLink(Path(hub.folder), Path(hub.folder) / "req")
        cuts = _cuts(box)
        ids = [_cut_and_retry(link, hub, number, cut) for number, cut in enumerate(cuts)]
        link.close()
        until(lambda: outcomes(read_journal(run)).keys() >= set(ids))
    check_run(run, acked=ids)
    entries = control_entries(run)
    require(len(entries) == len(ids), f"{len(entries)} entries for {len(ids)} commands")
    return Figures(f"{len(ids)} cuts: same answer {len(ids)}, double effects 0", ok=True)


def _cuts(box: Box) -> list[tuple[int | None, int | None]]:
    """Bytes to the hub and to the viewer after which the link is cut; one of them is None."""
    to_hub: list[tuple[int | None, int | None]] = [(n, None) for n in range(340)]
    to_viewer: list[tuple[int | None, int | None]] = [(None, n) for n in range(220)]
    return to_hub + to_viewer if box.long else box.rng.sample(to_hub + to_viewer, 40)


def _cut_and_retry(
    link: CuttableLink, hub: Endpoint, number: int, cut: tuple[int | None, int | None]
) -> str:
    message = command(f"cut-{number}", "note once")
    thread = link.cut_after(*cut)
    wire = Wire(link.address)
    wire.submit(message)
    first = None
    while thread.is_alive() and first is None:
        first = wire.answer(0.005)
    wire.close()
    thread.join(60.0)
    require(not thread.is_alive(), f"the link of cut {cut} did not end with its viewer")
    direct = Wire(hub.requests)
    direct.submit(message)
    second = direct.answer(10.0)
    direct.close()
    require(isinstance(second, Accepted), f"the retry got {second}")
    require(first in (None, second), f"{first} at first, then {second}")
    return message.id


@contextlib.contextmanager
def _double(run: RunDirectory) -> Iterator[None]:
    """The engine double as a process, with a hub."""
    program = [sys.executable, str(Path(engine_double.__file__)), str(run.path)]
    with open(run.engine_log, "ab") as log:
        process = subprocess.Popen(program, stdout=log, stderr=log, start_new_session=True)
    try:
        yield
    finally:
        process.kill()
        process.wait()
        _kill_hub(run)


@fault(
    "F24",
    "engine kill -9 while workers it forked live on",
    "the viewer says so ≤ 3 s; the run can be resumed at once",
    "a listening socket in the engine: the workers keep it, viewers connect to nobody",
)
def orphan_workers(box: Box) -> Figures:
    runs = [make_run(box.folder / f"runs-{number}") for number in range(box.count(1, 20))]
    seconds = [_orphan_once(box, run) for run in runs]
    return Figures(f"{len(seconds)}×: dead said after s {spread(seconds)}", max(seconds) <= 3.0)


def _orphan_once(box: Box, run: RunDirectory) -> float:
    engine = box.stage.spawn(_publish_with_worker, run)
    worker = run.path / "worker"
    until(worker.exists)
    seconds = asyncio.run(_notice_death(run, engine.pid or 0))
    engine.join()
    pid = int(worker.read_text())
    require(os.path.exists(f"/proc/{pid}"), "the worker was gone: nothing was tested")
    head = read_journal(run)[-1].seq
    with _publishing(box, run):
        until(lambda: read_journal(run)[-1].seq > head)
    os.kill(pid, signal.SIGKILL)
    check_journal(run)
    return seconds


def _publish_with_worker(run: RunDirectory) -> None:
    journal_writer, step = begin(run, hub=True)
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        while True:
            time.sleep(60)
    (run.path / "worker").write_text(str(pid))
    while True:
        step += 1
        journal_writer.emit(engine_double.step_event(step), step=step, timeline=1)
        time.sleep(0.01)


async def _notice_death(run: RunDirectory, engine: int) -> float:
    viewer = Viewer(run)
    await until_async(lambda: viewer.beat is not None and viewer.beat.engine_alive and viewer.seen)
    os.kill(engine, signal.SIGKILL)
    seconds = await until_async(lambda: viewer.beat is not None and not viewer.beat.engine_alive)
    await viewer.close()
    _kill_hub(run)
    return seconds


@fault(
    "F25",
    "stale socket, reused pid, linked and open runtime folder, second engine, second hub",
    "refused with a reason or replaced; wrong attaches 0",
    "ZeroMQ bind: takes another engine's address silently",
)
def mistake_identity(box: Box) -> Figures:
    run = make_run(box.folder / "runs")
    me = ProcessMark.current()
    write_mark(run.engine, EngineMark(pid=me.pid, started=me.started))
    cases = [_stale_endpoint, _reused_pid, _linked_folder, _open_folder, _second_writers]
    for case in cases:
        case(box, run)
    _kill_hub(run)
    return Figures(f"{len(cases) + 1} cases: wrong attaches 0", ok=True)


def _attached_to(run: RunDirectory) -> ProcessMark:
    async def attach() -> ProcessMark:
        viewer = Viewer(run)
        await until_async(lambda: viewer.link is Link.LIVE)
        await viewer.close()
        return hub_of(run)

    return asyncio.run(attach())


def _stale_endpoint(box: Box, run: RunDirectory) -> None:
    """A hub that died without a word left its file and its sockets."""
    launch_hub(run)
    old = hub_of(run)
    os.kill(old.pid, signal.SIGKILL)
    until(lambda: not old.alive)
    require(Path(old.folder, "req").exists(), "no stale socket: nothing was tested")
    require(_attached_to(run).pid != old.pid, "a viewer attached to a dead hub")


def _reused_pid(box: Box, run: RunDirectory) -> None:
    """The pid in the endpoint file belongs to somebody else by now."""
    endpoint = hub_of(run)
    _kill_hub(run)
    until(lambda: not endpoint.alive)
    write_mark(
        run.endpoint, Endpoint(pid=os.getpid(), started=endpoint.started, folder=endpoint.folder)
    )
    require(_attached_to(run).pid != os.getpid(), "a reused pid counted as the hub")


def _linked_folder(box: Box, run: RunDirectory) -> None:
    """Somebody put a link where the sockets would go."""
    with _runtime_dir(box.folder / "linked") as base:
        (base / "elsewhere").mkdir()
        (base / "fttui").symlink_to(base / "elsewhere")
        try:
            runtime_folder(run)
        except NotOwner as refusal:
            require("fttui" in str(refusal), f"no path in: {refusal}")
        else:
            require(False, "a linked runtime folder was used")


def _open_folder(box: Box, run: RunDirectory) -> None:
    """The folder of the sockets is open to everybody."""
    with _runtime_dir(box.folder / "open"):
        folder = runtime_folder(run)
        folder.chmod(0o777)
        require(runtime_folder(run).stat().st_mode & 0o077 == 0, "sockets in a folder open to all")


@contextlib.contextmanager
def _runtime_dir(base: Path) -> Iterator[Path]:
    short = Path(f"/tmp/ft-{os.getpid()}-{base.name}")
    short.mkdir()
    before = os.environ.get("XDG_RUNTIME_DIR")
    os.environ["XDG_RUNTIME_DIR"] = str(short)
    try:
        yield short
    finally:
        os.environ["XDG_RUNTIME_DIR"] = before or ""
        subprocess.run(["rm", "-rf", str(short)], check=True)


def _second_writers(box: Box, run: RunDirectory) -> None:
    """A second engine and a second hub on the same run."""
    with _publishing(box, run):
        hub = hub_of(run)
        second = subprocess.run(
            [sys.executable, "-m", "fttui.engine", str(run.path)],
            capture_output=True,
            text=True,
            check=False,
        )
        require(second.returncode != 0, "a second engine trained the same run")
        require("another process is writing the journal" in second.stderr, second.stderr[-300:])
        again = [sys.executable, "-m", "fttui.engine.hub", str(run.path)]
        require(subprocess.run(again, capture_output=True, check=False).returncode == 0, "no")
        require(hub_of(run) == hub, "a second hub took the first one's place")
