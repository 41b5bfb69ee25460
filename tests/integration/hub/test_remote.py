"""Runs on another machine: sessions and commands over the bridge, through cuts and ends.

Without sshd: a script in place of ssh runs the remote command here. `test_ssh.py` has the real one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path

import psutil
import pytest

from fttui.engine.errors import FttuiError
from fttui.engine.protocol.codec import encode
from fttui.engine.protocol.commands import AddNote, Pause, ScaleLr
from fttui.engine.protocol.events import RunEnded
from fttui.engine.protocol.states import RunState
from fttui.engine.run.journal import FrameReader, FrameWriter
from fttui.engine.run.known_runs import remember_run
from fttui.engine.run.run_dir import RunDirectory
from fttui.tui.connection.remote import RemoteSession
from fttui.tui.connection.ssh.remote_host import RemoteHost
from fttui.tui.connection.ssh.ssh_connection import RemoteFailed, SshConnection
from fttui.tui.view_model.connection_port import Delivery, Link, PreviewArrived
from tests.support.engine_double import EngineDouble, journal_payloads, make_run
from tests.support.remote_machine import pipe_ssh
from tests.support.waiting import eventually, until

from .conftest import StartRun, kill_hub
from .test_cli import fttui
from .test_session import Watcher, applied


@pytest.fixture(autouse=True)
def far_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs are known under their own state folder, and ssh is a pipe."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("FTTUI_SSH", pipe_ssh(tmp_path))


class RemoteWatcher(Watcher):
    """Collects what a remote session delivers, previews too."""

    def __init__(self, session: RemoteSession) -> None:
        self.previews: list[PreviewArrived] = []
        super().__init__(session)

    def _take(self, delivery: Delivery) -> None:
        if isinstance(delivery, PreviewArrived):
            self.previews.append(delivery)
        super()._take(delivery)

    def marks(self) -> list[bytes]:
        return [encode(record) for record in self.records]


@contextlib.asynccontextmanager
async def attached(
    run: str | None, *, read_only: bool = False, host: str = "box"
) -> AsyncIterator[RemoteWatcher]:
    remote = RemoteHost(host)
    session = RemoteSession(remote, read_only=read_only)
    connection = SshConnection(remote, may_prompt=True)
    connection.attach()
    await session.open(connection, run)
    connection.detach()
    watcher = RemoteWatcher(session)
    try:
        yield watcher
    finally:
        await session.close()
        watcher.task.cancel()
        with contextlib.suppress(asyncio.CancelledError, FttuiError):
            await watcher.task


def bridges() -> list[psutil.Process]:
    """Bridges that descend from this process."""
    mine = psutil.Process().children(recursive=True)
    found = []
    for process in mine:
        with contextlib.suppress(psutil.Error):
            if "bridge" in process.cmdline():
                found.append(process)
    return found


async def test_everything_then_the_news_in_order(runs: Path) -> None:
    engine = EngineDouble(make_run(runs))
    engine.start()
    engine.train(6000)
    remember_run(engine.run)
    async with attached(engine.run.id) as watcher:
        while len(watcher.records) < 6002:
            engine.train(1)
            await asyncio.sleep(0)
        engine.train(5)
        await eventually(lambda: len(watcher.records) == engine.seq)
        assert watcher.marks() == journal_payloads(engine.run)
        await eventually(lambda: watcher.beat is not None)
        assert watcher.link is Link.LIVE
    until(lambda: not bridges())


async def gone_on(watcher: RemoteWatcher, records: int, links: int) -> None:
    """The link was lost and came back, and more records came."""
    await eventually(lambda: Link.LOST in watcher.links[links:])
    await eventually(lambda: len(watcher.records) > records + 100)


async def test_a_killed_bridge_costs_neither_a_gap_nor_a_double(start_run: StartRun) -> None:
    run, _ = start_run("--step-s", "0.002")
    async with attached(run.id) as watcher:
        for _ in range(3):
            await eventually(lambda: watcher.link is Link.LIVE)
            before, links = len(watcher.records), len(watcher.links)
            for bridge in bridges():
                bridge.kill()
            await gone_on(watcher, before, links)
        assert watcher.whole()
        assert watcher.marks() == journal_payloads(run)[: len(watcher.records)]


async def test_a_killed_hub_is_not_noticed_and_commands_take_effect_once(
    start_run: StartRun,
) -> None:
    run, _ = start_run("--step-s", "0.005")
    async with attached(run.id) as watcher:
        ids = []
        for index in range(30):
            ids.append(watcher.session.submit(AddNote(text=f"n{index}")))
            if index == 10:
                kill_hub(run, signal.SIGKILL)
            if index == 20:
                for bridge in bridges():
                    bridge.kill()
            await asyncio.sleep(0.02)
        await eventually(lambda: len(watcher.answers) == len(ids))
        assert all(watcher.answers[id_].accepted for id_ in ids), watcher.answers
        await eventually(lambda: all(applied(watcher, id_) for id_ in ids))
        assert all(len(applied(watcher, id_)) == 1 for id_ in ids)
        assert len(list(FrameReader(run.control))) == len(ids)
        assert watcher.whole()


async def test_control_is_kept_through_hub_and_bridge(start_run: StartRun) -> None:
    run, _ = start_run()
    async with attached(run.id) as ann, attached(run.id) as bob:
        await eventually(lambda: ann.beat and bob.beat)
        assert await ann.session.take_control() is None
        refused = bob.session.submit(Pause())
        await eventually(lambda: refused in bob.answers)
        assert "has control" in bob.answers[refused].reason
        kill_hub(run, signal.SIGKILL)
        bob.beat = None
        await eventually(lambda: bob.beat and bob.beat.controller_viewer == ann.session.viewer)
        kill_hub(run, signal.SIGKILL)  # a question on its way is asked again
        assert await bob.session.take_control() is None
        await eventually(lambda: ann.beat and ann.beat.controller_viewer == bob.session.viewer)


async def test_a_dead_run_is_served_from_its_folder(runs: Path) -> None:
    engine = EngineDouble(make_run(runs))
    engine.start()
    engine.train(3000)
    engine.end(RunState.FAILED)
    engine.run.engine.unlink()
    (engine.run.reports / "r1.md").write_text("# r1")
    remember_run(engine.run)
    async with attached(engine.run.id) as watcher:
        await eventually(lambda: watcher.link is Link.ENDED)
        assert watcher.marks() == journal_payloads(engine.run)
        assert isinstance(watcher.records[-1].event, RunEnded)
        assert watcher.beat is not None
        assert watcher.beat.state is RunState.FAILED
        id_ = watcher.session.submit(Pause())
        await eventually(lambda: id_ in watcher.answers)
        assert "--resume" in watcher.answers[id_].reason
        assert await watcher.session.fetch_report("r1") == "# r1"
        with pytest.raises(FttuiError, match="no report 'r2'"):
            await watcher.session.fetch_report("r2")


async def test_a_run_that_is_resumed_comes_alive_again(runs: Path, start_run: StartRun) -> None:
    run, process = start_run("--steps", "5", idle_s=0.2)
    process.wait(30)
    async with attached(run.id) as watcher:
        await eventually(lambda: watcher.link is Link.ENDED)
        start_run(run=run)
        await eventually(lambda: watcher.link is Link.LIVE)
        id_ = watcher.session.submit(ScaleLr(factor=0.5))
        await eventually(lambda: applied(watcher, id_))
        assert watcher.whole()


@pytest.mark.parametrize("where", ["viewer", "remote side"])
async def test_read_only_holds_on_either_side(
    start_run: StartRun, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, _ = start_run()
    host = RemoteHost("box")
    if where == "remote side":
        host = RemoteHost("box", f"{sys.executable} -m fttui.tui bridge --read-only;:")
    session = RemoteSession(host, read_only=where == "viewer")
    connection = SshConnection(host, may_prompt=True)
    connection.attach()
    await session.open(connection, run.id)
    connection.detach()
    watcher = RemoteWatcher(session)
    await eventually(lambda: len(watcher.records) > 3)
    assert session.read_only
    id_ = session.submit(AddNote(text="x"))
    await eventually(lambda: id_ in watcher.answers)
    assert (
        "only to watch" in watcher.answers[id_].reason or "read-only" in watcher.answers[id_].reason
    )
    assert await session.take_control() is not None
    assert list(FrameReader(run.control)) == []
    await session.close()
    await watcher.task


async def test_a_long_history_is_previewed_before_it_has_arrived(runs: Path) -> None:
    engine = EngineDouble(make_run(runs))
    engine.start()
    engine.train_fast(80_000)
    remember_run(engine.run)
    async with attached(engine.run.id) as watcher:
        await eventually(lambda: watcher.previews)
        first = watcher.previews[0]
        assert len(watcher.records) < engine.seq
        assert first.head_seq == engine.seq
        steps = [record.step for record in first.records]
        assert steps == sorted(steps)
        assert len(steps) > 200
        assert max(b - a for a, b in pairwise(steps)) < 80_000 / 50
        assert {encode(record) for record in first.records} <= set(journal_payloads(engine.run))
        await eventually(lambda: len(watcher.records) == engine.seq)
        assert watcher.whole()
        exact = [preview for preview in watcher.previews if preview.exact]
        assert all(preview.records[-1].step == 80_000 for preview in exact)
        assert isinstance(watcher.session, RemoteSession)
        configs = await watcher.session.fetch_configs()
        assert configs.resolved == engine.run.config.read_text()
        assert configs.source == engine.run.source_config.read_text()


async def test_another_journal_in_the_same_place_is_not_mixed_in(runs: Path) -> None:
    engine = EngineDouble(make_run(runs))
    engine.start()
    engine.train(50)
    remember_run(engine.run)
    async with attached(engine.run.id) as watcher:
        await eventually(lambda: len(watcher.records) == 52)
        # As after a power loss: the newest records are gone, others take their numbers.
        payloads = journal_payloads(engine.run)[:30]
        for bridge in bridges():
            bridge.suspend()
        engine.journal.close()
        engine.run.journal.unlink()
        again = FrameWriter(engine.run.journal, engine.run.journal_lock)
        again.append(*payloads)
        again.close()
        other = EngineDouble(engine.run)
        other.step = 1000
        other.train(60)
        for bridge in bridges():
            bridge.kill()
        with pytest.raises(RemoteFailed, match="record 52, the newest one shown, is no longer in"):
            await asyncio.wait_for(asyncio.shield(watcher.task), 30)
        assert watcher.whole()
        assert len(watcher.records) == 52


async def test_noise_of_the_login_shell_is_skipped(runs: Path, tmp_path: Path) -> None:
    engine = EngineDouble(make_run(runs))
    engine.start()
    remember_run(engine.run)
    script = tmp_path / "pipe-ssh"
    script.write_text(script.read_text().replace("exec", "seq 9999; echo welcome >&2; exec"))
    async with attached(engine.run.id) as watcher:
        await eventually(lambda: len(watcher.records) == 2)


def test_runs_are_listed_and_found_wherever_they_are(start_run: StartRun, runs: Path) -> None:
    run, _ = start_run()
    elsewhere = make_run(runs.parent / "elsewhere", name="other")
    remember_run(elsewhere)
    listed = fttui("ls", "box", "--json")
    assert {(r["host"], r["id"]) for r in json.loads(listed.stdout)} == {
        ("box", run.id),
        ("box", elsewhere.id),
    }
    several = fttui("ls", "one", "two")
    assert several.returncode == 0
    assert f"one:{run.id}" in several.stdout
    assert f"two:{elsewhere.id}" in several.stdout
    both = fttui("attach", "one", "two")
    assert both.returncode == 0
    assert f"one:{run.id}" in both.stdout
    assert f"two:{elsewhere.id}" in both.stdout
    without_terminal = fttui("attach", "ann@box")
    assert without_terminal.returncode == 0
    assert run.id in without_terminal.stdout


def test_one_command_to_another_machine(start_run: StartRun) -> None:
    run, _ = start_run()
    done = fttui("ctl", f"ann@box:{run.id}", "lr", "scale", "0.5", "--reason", "far")
    assert done.returncode == 0, done.stderr
    assert "lr scale 0.5 (a → b)" in done.stdout
    failed = fttui("ctl", f"box:{run.id[:8]}", "eval")
    assert failed.returncode == 7
    assert "nothing to evaluate on" in failed.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("ctl", "box:nosuch", "pause"), 3, "no run 'nosuch'"),
        (("ctl", "box:x", "fly"), 2, "unknown command"),
        (("attach", "-oProxyCommand=x:run"), 2, ""),
        (("ls", "box", "--remote-cmd", "/none/fttui"), 127, "--remote-cmd"),
        (("ls", "box", "--remote-cmd", "echo hello;:"), 127, "its output: 'hello'"),
        (("ls", "box", "--remote-cmd", "exit 3;:"), 255, "exit code 3"),
        (("ctl", "ended", "pause"), 6, "fttui run --resume"),
        (("ctl", "box:ended", "pause"), 6, "no engine is running for"),
    ],
)
def test_what_cannot_be_is_explained(
    runs: Path, arguments: tuple[str, ...], code: int, said: str
) -> None:
    engine = EngineDouble(make_run(runs, name="ended"))
    engine.start()
    engine.end()
    engine.run.engine.unlink()
    remember_run(engine.run)
    done = fttui(*arguments)
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_bridge_refuses_to_talk_to_a_person() -> None:
    import pexpect

    child = pexpect.spawn(sys.executable, ["-m", "fttui.tui", "bridge"], timeout=30, use_poll=True)
    child.expect("with: fttui attach")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 2


@pytest.mark.parametrize(
    "sent",
    [b"\xff" * 70_000, b"\x05\x00\x00\x00\x01hello", b""],
    ids=["no frame", "no message", "nothing"],
)
def test_nonsense_ends_the_bridge_and_nothing_else(runs: Path, sent: bytes) -> None:
    bridge = subprocess.run(
        [sys.executable, "-m", "fttui.tui", "bridge"],
        input=sent,
        capture_output=True,
        timeout=60,
    )
    assert bridge.returncode == (4 if sent else 0)
    assert b"Traceback" not in bridge.stderr


def test_a_viewer_that_says_nothing_costs_nothing_after_a_while(
    start_run: StartRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bridge leaves when its viewer vanished without closing the stream."""
    run, _ = start_run("--step-s", "0.001")
    script = (
        "import sys\nfrom pathlib import Path\n"
        "from fttui.engine.hub.ssh_bridge import session\n"
        "session.SILENT_S = 0.5\nfrom fttui.engine.hub.ssh_bridge.main import serve\n"
        "from fttui.engine.hub.ssh_bridge.server import BridgeOptions\n"
        "sys.exit(serve(BridgeOptions(runs=Path('none'), version='0')))\n"
    )
    from fttui.engine.protocol.ssh_protocol import FrameKind, Open, frames_of

    bridge = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert bridge.stdin is not None
    bridge.stdin.write(
        frames_of(FrameKind.TALK, encode(Open(version=(1, 0), viewer="v", issuer="i", run=run.id)))
    )
    bridge.stdin.flush()
    assert bridge.wait(30) == 0
    bridge.stdin.close()
    assert bridge.stdout is not None
    bridge.stdout.close()


def test_the_interpreter_is_noted_where_a_run_is_served(
    start_run: StartRun, tmp_path: Path
) -> None:
    start_run()
    until(lambda: (tmp_path / "state" / "fttui" / "python").exists())
    noted = (tmp_path / "state" / "fttui" / "python").read_text().strip()
    assert os.path.samefile(noted, sys.executable)


def test_notes_of_removed_runs_go(runs: Path, tmp_path: Path) -> None:
    import shutil

    from fttui.engine.run.known_runs import known_runs

    run = make_run(runs)
    remember_run(run)
    assert [r.path for r in known_runs()] == [RunDirectory(run.path.resolve()).path]
    shutil.rmtree(run.path)
    assert list(known_runs()) == []
    assert list((tmp_path / "state" / "fttui" / "runs").iterdir()) == []
