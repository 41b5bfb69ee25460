"""Faults of viewers: killed, stopped, slow, restless. Training must not notice any of them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator
from itertools import pairwise
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import zmq

from fttui.engine.protocol.codec import PROTOCOL_VERSION, encode
from fttui.engine.protocol.events import StepFinished
from fttui.engine.protocol.requests import Hello
from fttui.engine.run.control_log import Doorbell
from fttui.engine.run.files import write_atomically
from fttui.engine.run.processes.marks import Endpoint, read_endpoint, read_engine
from fttui.engine.run.run_dir import RunDirectory
from tests.support.engine_double import make_run
from tests.support.waiting import until

from .book import Box, Figures, fault, spread
from .emitter import handed_over, publish_steps
from .invariants import Footprint, check_history, check_journal, require
from .stage import read_journal
from .viewers import Viewer, hub_of

STEPS_PER_S = 200.0


@contextlib.contextmanager
def streaming(box: Box, run: RunDirectory, per_s: float = STEPS_PER_S) -> Iterator[int]:
    """An engine that steps at a rate, with a hub; gives its pid, kills both at the end."""
    engine = box.stage.spawn(publish_steps, run, per_s, True)
    try:
        until(lambda: (mark := read_engine(run)) is not None and mark.pid == engine.pid)
        hub_of(run)
        until(lambda: handed_over(run).read() > 100)
        yield engine.pid or 0
    finally:
        kill(engine)
        hub = read_endpoint(run)
        if hub is not None and hub.alive:
            os.kill(hub.pid, signal.SIGKILL)


def kill(process: ForkServerProcess) -> None:
    """End a process of the stage at once."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid or 0, signal.SIGKILL)
    process.join()


def watch(run: RunDirectory, place: Path, per_record_s: float = 0.0) -> None:
    """Be a viewer that tells how far it is, until a file says to end; then what it saw."""
    asyncio.run(_watch(run, place, per_record_s))


async def _watch(run: RunDirectory, place: Path, per_record_s: float) -> None:
    viewer, told = Viewer(run), Doorbell(place)
    end, hurry = place.with_suffix(".end"), place.with_suffix(".hurry")
    seen = 0
    while not end.exists():
        if per_record_s and len(viewer.seen) > seen and not hurry.exists():
            # As slow in taking records as an app that draws every single one.
            time.sleep(min(1.0, per_record_s * (len(viewer.seen) - seen)))
        seen = len(viewer.seen)
        told.ring(viewer.last_seq)
        await asyncio.sleep(0.01)
    write_atomically(place.with_suffix(".marks"), json.dumps(viewer.marks()).encode())
    await viewer.close()


class Watching:
    """A viewer in a process of its own."""

    def __init__(self, box: Box, run: RunDirectory, name: str, per_record_s: float = 0.0) -> None:
        self._run = run
        self._place = box.folder / name
        self._told = Doorbell(self._place)
        self.process = box.stage.spawn(watch, run, self._place, per_record_s)

    @property
    def last_seq(self) -> int:
        """Newest record it has."""
        return self._told.read()

    def signal(self, number: int) -> None:
        """Signal it."""
        os.kill(self.process.pid or 0, number)

    def hurry(self) -> None:
        """Be slow no more."""
        self._place.with_suffix(".hurry").touch()

    def until_equal(self) -> float:
        """Seconds until it has what the journal holds now."""
        started = time.monotonic()
        head = read_journal(self._run)[-1].seq
        until(lambda: self.last_seq >= head, 120.0)
        return time.monotonic() - started

    def check(self) -> None:
        """End it, and compare what it saw with the journal."""
        self._place.with_suffix(".end").touch()
        marks = self._place.with_suffix(".marks")
        until(marks.exists)
        self.process.join()
        check_history(self._run, json.loads(marks.read_bytes()))


def intervals_ms(run: RunDirectory, since: float, until_: float) -> list[float]:
    """Milliseconds between the steps that finished in a span of Unix seconds."""
    records = [r for r in read_journal(run) if isinstance(r.event, StepFinished)]
    times = [r.time for r in records if since <= r.time <= until_]
    return [1000 * (later - earlier) for earlier, later in pairwise(times)]


@fault(
    "F01",
    "viewers killed (SIGKILL) while they stream",
    "no effect on training; descriptors and memory come back",
    "-",
)
def killed_viewers(box: Box) -> Figures:
    run = make_run(box.folder / "runs")
    count = box.count(4, 200)
    with streaming(box, run) as engine:
        quiet_from = time.time()
        head = handed_over(run).read()
        until(lambda: handed_over(run).read() > head + 200)
        before, hub = Footprint(engine), hub_of(run)
        hub_before = Footprint(hub.pid)
        killed_from = time.time()
        for number in range(count):
            _watch_and_kill(box, run, f"viewer-{number}")
        end = time.time()
        Footprint(engine).check_against(before)
        require(hub_of(run) == hub, "the hub was restarted")
        until(lambda: Footprint(hub.pid).descriptors <= hub_before.descriptors)
        Footprint(hub.pid).check_against(hub_before)
    check_journal(run)
    quiet, killing = (
        spread(intervals_ms(run, a, b), 1)
        for a, b in ((quiet_from, killed_from), (killed_from, end))
    )
    ours = f"{count}×: ms between steps {quiet} before, {killing} meanwhile; fd and RSS as before"
    return Figures(ours, ok=True)


def _watch_and_kill(box: Box, run: RunDirectory, name: str) -> None:
    viewer = Watching(box, run, name)
    until(lambda: viewer.last_seq > 0)
    kill(viewer.process)


@fault(
    "F02",
    "viewer stopped (SIGSTOP) at 200 records/s, then continued",
    "gap refilled, nothing missing",
    "ZeroMQ PUB/SUB: one hole of 49 104 records, for good",
)
def stopped_viewer(box: Box) -> Figures:
    run = make_run(box.folder / "runs")
    stopped_s = box.count(4, 60)
    with streaming(box, run):
        viewer = Watching(box, run, "viewer")
        until(lambda: viewer.last_seq > 50)
        viewer.signal(signal.SIGSTOP)
        had, head = viewer.last_seq, handed_over(run).read()
        until(lambda: handed_over(run).read() > head + STEPS_PER_S * stopped_s, 120.0)
        missed = read_journal(run)[-1].seq - had
        viewer.signal(signal.SIGCONT)
        seconds = viewer.until_equal()
        viewer.check()
    return Figures(f"{missed} records behind, equal after {seconds:.2f} s, missing 0", ok=True)


@fault(
    "F03",
    "viewer that needs 50 ms per record, at 200 records/s",
    "it lags, nobody else does; whole once it hurries",
    "ZeroMQ PUB/SUB: holes",
)
def slow_viewer(box: Box) -> Figures:
    run = make_run(box.folder / "runs")
    with streaming(box, run):
        viewer = Watching(box, run, "slow", per_record_s=0.05)
        quick = Watching(box, run, "quick")
        until(lambda: viewer.last_seq > 0 and quick.last_seq > 0)
        hub_before = Footprint(hub_of(run).pid)
        head = handed_over(run).read()
        until(lambda: handed_over(run).read() > head + STEPS_PER_S * box.count(5, 60), 120.0)
        behind = read_journal(run)[-1].seq - viewer.last_seq
        quick_behind = read_journal(run)[-1].seq - quick.last_seq
        require(quick_behind < STEPS_PER_S, f"a quick viewer is {quick_behind} behind")
        Footprint(hub_of(run).pid).check_against(hub_before)
        viewer.hurry()
        seconds = viewer.until_equal()
        for one in (viewer, quick):
            one.check()
    ours = f"{behind} records behind (a quick one {quick_behind}), equal after {seconds:.2f} s"
    return Figures(f"{ours}, missing 0", ok=True)


@fault(
    "F04",
    "50 viewers a second connect and drop the connection",
    "descriptors and memory of the hub flat",
    "-",
)
def restless_viewers(box: Box) -> Figures:
    run = make_run(box.folder / "runs")
    with streaming(box, run):
        hub = hub_of(run)
        _come_and_go(hub, 50)
        before = Footprint(hub.pid)
        count = box.count(200, 3000)
        _come_and_go(hub, count)
        until(lambda: Footprint(hub.pid).descriptors <= before.descriptors + 2)
        after = Footprint(hub.pid)
        after.check_against(before)
        require(hub_of(run) == hub, "the hub was restarted")
    check_journal(run)
    grown = (after.rss_bytes - before.rss_bytes) / 2**20
    fds = after.descriptors - before.descriptors
    return Figures(f"{count}×: descriptors {fds:+d}, RSS {grown:+.1f} MiB", ok=True)


def _come_and_go(hub: Endpoint, count: int, per_s: float = 50.0) -> None:
    due = time.monotonic()
    with zmq.Context() as context:
        context.linger = 0
        for number in range(count):
            events, requests = context.socket(zmq.SUB), context.socket(zmq.DEALER)
            events.subscribe(b"")
            events.connect(hub.events)
            requests.connect(hub.requests)
            name = f"restless-{number}"
            hello = Hello(ref=1, version=PROTOCOL_VERSION, viewer=name, issuer=name)
            requests.send(encode(hello))
            requests.poll(2000)
            events.close()
            requests.close()
            due += 1.0 / per_s
            time.sleep(max(0.0, due - time.monotonic()))


@fault(
    "F31",
    "the hub ends while a stopped viewer is attached, with unread messages",
    "gone ≤ 1 s",
    "libzmq's own linger: hangs for ever",
)
def exit_with_stopped_viewer(box: Box) -> Figures:
    runs = [make_run(box.folder / f"runs-{number}") for number in range(box.count(2, 20))]
    seconds = [_exit_once(box, run) for run in runs]
    return Figures(f"{len(seconds)}×: gone after s {spread(seconds)}", max(seconds) <= 1.0)


def _exit_once(box: Box, run: RunDirectory) -> float:
    with streaming(box, run):
        viewer = Watching(box, run, f"viewer-{run.path.parent.name}")
        until(lambda: viewer.last_seq > 0)
        viewer.signal(signal.SIGSTOP)
        head = handed_over(run).read()
        until(lambda: handed_over(run).read() > head + 2 * STEPS_PER_S)
        hub = hub_of(run)
        started = time.monotonic()
        os.kill(hub.pid, signal.SIGTERM)
        until(lambda: not hub.alive)
        seconds = time.monotonic() - started
        kill(viewer.process)
    return seconds
