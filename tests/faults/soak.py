"""`python -m tests.faults.soak MINUTES [--per-minute 12] [--seed 0]`: random faults in a row.

An engine double with a hub; viewers near and, where sshd is installed, far; commands all the time.
At the end every invariant is checked and the figures are printed. Exits 1 when one is broken.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from fttui.engine.protocol.codec import encode
from fttui.engine.protocol.commands import AddNote
from fttui.engine.run.processes.marks import Endpoint, read_endpoint, read_engine
from fttui.engine.run.run_dir import RunDirectory
from fttui.tui.view_model.connection_port import Session
from tests.support.engine_double import make_run
from tests.support.link import Link
from tests.support.remote_machine import SSHD, SshServer

from .book import Box
from .intruders import bad_messages, endless, garbage
from .invariants import Broken, check_history, check_run, control_entries, marks
from .ssh_links import RemoteViewer, attached, obeying, remote_machine
from .stage import Stage
from .viewers import Viewer, until_async

_HEALTH_S = 120.0
"""Far more than it ever takes: a viewer without news after this will never have any."""


@dataclass
class Tally:
    """What happened."""

    faults: Counter[str] = field(default_factory=Counter)
    commands: list[str] = field(default_factory=list)
    engine: list[tuple[float, int, int]] = field(default_factory=list)
    """Seconds, descriptors, resident bytes of the engine."""
    restarts: int = 0
    """Of the hub."""
    longest_wait_s: float = 0.0
    """Until all viewers had news again after a fault."""


@dataclass
class Scene:
    """What faults are thrown at."""

    run: RunDirectory
    engine: int
    near: Viewer
    remote: RemoteViewer | None
    server: SshServer | None
    link: Link | None


def _attacks(scene: Scene, hub: Endpoint, rng: random.Random) -> dict[str, Callable[[], object]]:
    """The faults that can be thrown here."""
    here: dict[str, Callable[[], object]] = {
        "hub killed": lambda: os.kill(hub.pid, signal.SIGKILL),
        "hub stopped": lambda: os.kill(hub.pid, signal.SIGSTOP),
        "engine stopped": lambda: os.kill(scene.engine, signal.SIGSTOP),
        "garbage": lambda: garbage(hub, rng, long=False),
        "bad messages": lambda: bad_messages(hub, rng, long=False),
        "endless message": lambda: endless(hub, rng, long=False),
    }
    if scene.link is not None:
        here |= {
            "link reset": scene.link.cut,
            "link black": scene.link.swallow,
            "ssh killed": lambda: _kill_children("ssh"),
        }
    return here


def _kill_children(name: str) -> None:
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.name() == name:
                process.kill()


def _calm(scene: Scene, hub: Endpoint) -> None:
    """Take back what a fault left on."""
    for pid in (scene.engine, hub.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    if scene.link is not None:
        scene.link.swallow(False)


async def _soak(scene: Scene, seconds: float, per_minute: float, rng: random.Random) -> Tally:
    tally, end = Tally(), time.monotonic() + seconds
    remote = [scene.remote.session] if scene.remote else []
    sessions: list[Session] = [scene.near.session, *remote]
    await _healthy(scene, "the start")
    while time.monotonic() < end:
        hub = await _living_hub(scene)
        name, attack = rng.choice(sorted(_attacks(scene, hub, rng).items()))
        tally.faults[name] += 1
        attack()
        await asyncio.sleep(rng.uniform(0.1, 30.0 / per_minute))
        _calm(scene, hub)
        session = rng.choice(sessions)
        if await session.take_control() is None:
            tally.commands.append(session.submit(AddNote(text=name)))
        tally.longest_wait_s = max(tally.longest_wait_s, await _healthy(scene, name))
        tally.restarts += await _living_hub(scene) != hub
        process = psutil.Process(scene.engine)
        tally.engine.append((time.monotonic(), process.num_fds(), process.memory_info().rss))
        await asyncio.sleep(rng.uniform(0.0, 30.0 / per_minute))
    return tally


async def _living_hub(scene: Scene) -> Endpoint:
    """The hub that serves now; it is the viewers of this very loop who start one that died."""

    def living() -> Endpoint | None:
        found = read_endpoint(scene.run)
        return found if found is not None and found.alive else None

    await until_async(living, _HEALTH_S)
    return living() or await _living_hub(scene)


async def _healthy(scene: Scene, after: str) -> float:
    """Seconds until every viewer has fresh news.

    Raises:
        Broken: one has none and will have none.
    """
    viewers = [viewer for viewer in (scene.near, scene.remote) if viewer is not None]
    before = [len(viewer.seen) for viewer in viewers]

    def fresh() -> bool:
        for viewer in viewers:
            if viewer.task.done():
                viewer.task.result()
        return all(len(v.seen) > n + 20 for v, n in zip(viewers, before, strict=True))

    try:
        return await until_async(fresh, _HEALTH_S)
    except AssertionError:
        gained = [(v.link, len(v.seen) - n) for v, n in zip(viewers, before, strict=True)]
        raise Broken(
            f"no news {_HEALTH_S:g} s after {after}: gained, near first {gained}"
        ) from None


async def _play(run: RunDirectory, place: tuple[SshServer, Link] | None, options: Options) -> Tally:
    mark = read_engine(run)
    assert mark is not None
    near = Viewer(run)
    async with contextlib.AsyncExitStack() as stack:
        remote = await stack.enter_async_context(attached(run)) if place else None
        server, link = place or (None, None)
        scene = Scene(run, mark.pid, near, remote, server, link)
        tally = await _soak(scene, options.seconds, options.per_minute, options.rng)
        for viewer in (near, remote):
            if viewer is not None:
                check_history(run, marks(encode(record) for record in viewer.seen))
        await near.close()
    if not mark.alive:
        raise Broken("the engine ended unexplained")
    return tally


@dataclass
class Options:
    """How long, how often, and by which dice."""

    seconds: float
    per_minute: float
    rng: random.Random


def soak(folder: Path, stage_box: Box, options: Options) -> tuple[Tally, str]:
    """Play it; the tally and the figures in one line."""
    run = make_run(folder / "runs")
    with contextlib.ExitStack() as stack:
        place = stack.enter_context(remote_machine(stage_box, run)) if SSHD else None
        stack.enter_context(obeying(run))
        tally = asyncio.run(_play(run, place, options))
    records = check_run(run)
    known = {entry.id for entry in control_entries(run)}
    taken = sum(id_ in known for id_ in tally.commands)
    (_, fds, rss), (_, last_fds, last_rss) = tally.engine[0], tally.engine[-1]
    figures = (
        f"{sum(tally.faults.values())} faults in {options.seconds / 60:.1f} min, {len(records)} "
        f"records: gaps 0, doubles 0, unexplained exits 0; commands {taken} taken of "
        f"{len(tally.commands)}, each once; hub restarts {tally.restarts}; worst wait for news "
        f"{tally.longest_wait_s:.1f} s; engine fd {last_fds - fds:+d}, "
        f"RSS {(last_rss - rss) / 2**20:+.1f} MiB"
    )
    return tally, figures


def main() -> int:
    """Run the soak alone."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.soak", description=__doc__)
    parser.add_argument("minutes", type=float)
    parser.add_argument("--per-minute", type=float, default=12.0, help="faults")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    with tempfile.TemporaryDirectory(prefix="ft-soak-", dir="/tmp") as place:
        folder = Path(place)
        os.environ |= {"XDG_RUNTIME_DIR": place, "XDG_STATE_HOME": place}
        box = Box(folder, Stage(folder), long=True, rng=rng)
        how = Options(seconds=60 * options.minutes, per_minute=options.per_minute, rng=rng)
        try:
            tally, figures = soak(folder, box, how)
        except AssertionError as error:
            print(f"BROKEN: {error}")
            return 1
    print(figures)
    print(", ".join(f"{name} {count}×" for name, count in tally.faults.most_common()))
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
