"""Faults on the way to another machine: a real OpenSSH server behind a link that goes bad."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import psutil

from fttui.engine.errors import FttuiError
from fttui.engine.protocol.codec import encode
from fttui.engine.protocol.commands import AddNote
from fttui.engine.protocol.events import CommandApplied, Record
from fttui.engine.run.known_runs import remember_run
from fttui.engine.run.run_dir import RunDirectory
from fttui.tui.connection.remote import RemoteSession
from fttui.tui.connection.session import silence
from fttui.tui.connection.ssh.remote_host import LoginRefused, RemoteHost
from fttui.tui.connection.ssh.ssh_connection import SshConnection
from fttui.tui.view_model.connection_port import (
    CommandAnswered,
    Delivery,
    LinkChanged,
    RecordsArrived,
)
from fttui.tui.view_model.connection_port import Link as State
from tests.support import engine_double
from tests.support.engine_double import make_run
from tests.support.link import Link
from tests.support.remote_machine import NO_SSHD, SSHD, SshServer

from .book import Box, Figures, fault, spread
from .invariants import check_history, check_run, control_entries, marks, require
from .viewers import hub_of, until_async

_ENVIRONMENT = ("XDG_STATE_HOME", "FTTUI_SSH")


@contextlib.contextmanager
def obeying(run: RunDirectory) -> Iterator[None]:
    """An engine double that steps 200 times a second and does what it is told, with a hub."""
    program = [sys.executable, str(Path(engine_double.__file__)), str(run.path)]
    endless = ["--step-s", "0.005", "--steps", str(10**9)]
    with open(run.engine_log, "ab") as log:
        process = subprocess.Popen(
            [*program, *endless], stdout=log, stderr=log, start_new_session=True
        )
    try:
        hub_of(run)
        yield
    finally:
        process.kill()
        process.wait()
        with contextlib.suppress(ProcessLookupError):
            os.kill(hub_of(run).pid, signal.SIGKILL)


class RemoteViewer:
    """A remote session and what it delivered."""

    def __init__(self, session: RemoteSession) -> None:
        self.session = session
        self.seen: list[Record] = []
        self.answers: dict[str, CommandAnswered] = {}
        self.link: State | None = None
        self.links: list[State] = []
        self.task = asyncio.create_task(session.listen(self._take))

    def _take(self, delivery: Delivery) -> None:
        match delivery:
            case RecordsArrived(records=records):
                self.seen += records
            case LinkChanged(link=link):
                self.link = link
                self.links.append(link)
            case CommandAnswered(id=id_):
                require(id_ not in self.answers, f"{id_} was answered twice")
                self.answers[id_] = delivery

    async def until_news(self, count: int = 20) -> float:
        """Seconds until so many more records have come."""
        before = len(self.seen)
        seconds = await until_async(
            lambda: len(self.seen) >= before + count or self.task.done(), 90.0
        )
        if self.task.done():
            self.task.result()
        return seconds


@contextlib.asynccontextmanager
async def attached(run: RunDirectory) -> AsyncIterator[RemoteViewer]:
    """Attach over $FTTUI_SSH."""
    session = RemoteSession(RemoteHost("far"))
    connection = SshConnection(RemoteHost("far"), may_prompt=False)
    connection.attach()
    await session.open(connection, run.id)
    connection.detach()
    viewer = RemoteViewer(session)
    try:
        yield viewer
    finally:
        await session.close()
        viewer.task.cancel()
        await asyncio.wait([viewer.task])


@contextlib.contextmanager
def remote_machine(box: Box, run: RunDirectory) -> Iterator[tuple[SshServer, Link]]:
    """A server and a link to it, which $FTTUI_SSH goes through."""
    before = {name: os.environ.get(name) for name in _ENVIRONMENT}
    os.environ["XDG_STATE_HOME"] = str(box.folder / "state")
    remember_run(run)
    server = SshServer(box.folder / "ssh")
    link = Link(server.port)
    server.trust(server.folder / "host.pub", link.port)
    os.environ["FTTUI_SSH"] = server.command_with(port=link.port)
    try:
        yield server, link
    finally:
        link.close()
        server.close()
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


async def _cut(_server: SshServer, link: Link, _long: bool) -> None:
    link.cut()


async def _kill_client(_server: SshServer, _link: Link, _long: bool) -> None:
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.name() == "ssh":
                process.kill()


async def _freeze_server(server: SshServer, _link: Link, _long: bool) -> None:
    """Stopped for good: found out by its silence."""
    for process in server.sessions():
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.name().startswith("sshd"):
                process.suspend()


async def _server_down(server: SshServer, _link: Link, long: bool) -> None:
    server.stop()
    await asyncio.sleep(20 if long else 1)
    server.start()


async def _reset_often(_server: SshServer, link: Link, _long: bool) -> None:
    link.cut_after_bytes = 40_000
    link.cut()
    connections = link.connections
    await until_async(lambda: link.connections >= connections + 3, 90.0)
    link.cut_after_bytes = None


async def _far_and_stalling(_server: SshServer, link: Link, _long: bool) -> None:
    link.latency_s = 0.1
    for _ in range(5):
        link.swallow()
        await asyncio.sleep(0.2)
        link.swallow(False)
        await asyncio.sleep(0.2)
    link.latency_s = 0.0


Attack = Callable[[SshServer, Link, bool], Awaitable[None]]
_ATTACKS: dict[str, Attack] = {
    "link reset": _cut,
    "ssh killed": _kill_client,
    "sshd frozen": _freeze_server,
    "sshd down": _server_down,
    "reset every 40 kB": _reset_often,
    "200 ms and stalls": _far_and_stalling,
}


_SHORT = ("ssh killed", "sshd frozen", "reset every 40 kB")
"""The most different attacks: a process that is gone, one that is silent, a link that is poor."""


@fault(
    "F28",
    "ssh killed, its server's session stopped, sshd down, reset every 40 kB, 200 ms and stalls",
    "resumed by sequence number, lost 0, each command once; back p99 ≤ 5 s after the link",
    "ssh -L tunnels: connect to a dead socket, no error",
)
def bad_links(box: Box) -> Figures:
    if SSHD is None:
        return Figures(NO_SSHD, ok=True, skipped=True)
    run = make_run(box.folder / "runs")
    with remote_machine(box, run) as (server, link), obeying(run):
        times, ids = asyncio.run(_suffer(box, run, server, link))
    check_run(run, acked=ids)
    require(len(control_entries(run)) == len(ids), "a command was journaled twice")
    back = [seconds for name, seconds in times if name in ("link reset", "ssh killed")]
    worst = {name: max(s for n, s in times if n == name) for name in dict(times)}
    told = ", ".join(f"{name} {seconds:.1f}" for name, seconds in worst.items())
    ours = f"{len(times)} cuts: back after s {spread(back)} (worst: {told}); lost 0, doubled 0"
    return Figures(ours, ok=sorted(back)[round(0.99 * (len(back) - 1))] <= 5.0)


async def _suffer(
    box: Box, run: RunDirectory, server: SshServer, link: Link
) -> tuple[list[tuple[str, float]], list[str]]:
    times, ids = [], []
    lost_s, silence.LOST_S = silence.LOST_S, 10.0 if box.long else 4.0
    rounds = [*_ATTACKS] * 5 + ["link reset", "ssh killed"] * 50 if box.long else [*_SHORT]
    try:
        async with attached(run) as viewer:
            await viewer.until_news()
            for name in rounds:
                ids.append(viewer.session.submit(AddNote(text=name)))
                connections = link.connections
                await _ATTACKS[name](server, link, box.long)
                started = time.monotonic()
                if name != "200 ms and stalls":
                    await _until_connected(link, connections)
                ids.append(viewer.session.submit(AddNote(text=f"after {name}")))
                await viewer.until_news()
                times.append((name, time.monotonic() - started))
            await until_async(lambda: len(viewer.answers) == len(ids))
            require(all(a.accepted for a in viewer.answers.values()), str(viewer.answers))
            done = _applied(viewer, ids)
            await until_async(lambda: done() == len(ids))
            check_history(run, marks(encode(record) for record in viewer.seen))
    finally:
        silence.LOST_S = lost_s
    return times, ids


async def _until_connected(link: Link, before: int) -> None:
    await until_async(lambda: link.connections > before, 60.0)


def _applied(viewer: RemoteViewer, ids: list[str]) -> Callable[[], int]:
    wanted = set(ids)
    return lambda: sum(
        isinstance(r.event, CommandApplied) and r.event.id in wanted for r in viewer.seen
    )


@fault(
    "F29",
    "login refused and host key changed, at first and when coming back",
    "one attempt, a clear message, no retry",
    "a loop of retries: OpenSSH 9.8 locks the address out",
)
def refused_logins(box: Box) -> Figures:
    if SSHD is None:
        return Figures(NO_SSHD, ok=True, skipped=True)
    run = make_run(box.folder / "runs")
    with remote_machine(box, run) as (server, link), obeying(run):
        attempts = []
        for wrong in (_other_key, _other_host):
            server.trust(server.folder / "host.pub", link.port)
            os.environ["FTTUI_SSH"] = server.command_with(port=link.port)
            attempts += asyncio.run(_come_back_refused(run, server, link, wrong))
    return Figures(f"4 cases: attempts {attempts}", ok=set(attempts) == {1})


def _other_key(server: SshServer, link: Link) -> str:
    os.environ["FTTUI_SSH"] = server.command_with("stranger", link.port)
    return "refused the login"


def _other_host(server: SshServer, link: Link) -> str:
    server.trust(server.folder / "stranger.pub", link.port)
    return "is not the known one"


async def _come_back_refused(
    run: RunDirectory, server: SshServer, link: Link, wrong: Callable[[SshServer, Link], str]
) -> list[int]:
    attempts = []
    async with attached(run) as viewer:
        await viewer.until_news()
        said = wrong(server, link)
        before = link.connections
        link.cut()
        await asyncio.wait([viewer.task], timeout=60.0)
        error = viewer.task.exception()
        require(isinstance(error, LoginRefused) and said in str(error), f"said: {error}")
        await asyncio.sleep(2.0)
        attempts.append(link.connections - before)
    before = link.connections
    try:
        async with attached(run):
            require(False, "let in")
    except FttuiError as refusal:
        require(said in str(refusal), f"said: {refusal}")
    attempts.append(link.connections - before)
    return attempts
