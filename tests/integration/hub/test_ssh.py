"""The same over a real OpenSSH server on this machine, with throw-away keys and a bad link."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from fttui.engine.protocol.commands import AddNote, Pause
from fttui.engine.run.journal import FrameReader
from fttui.tui.client import far as far_module
from fttui.tui.client.port import Link as State
from fttui.tui.client.ssh import LoginRefused
from tests.support.engine_double import journal_payloads
from tests.support.far_machine import NO_SSHD, SSHD, SshServer
from tests.support.link import Link
from tests.support.waiting import eventually

from .conftest import StartRun
from .test_cli import fttui
from .test_remote import RemoteWatcher, attached
from .test_session import applied

pytestmark = pytest.mark.skipif(SSHD is None, reason=NO_SSHD)


@pytest.fixture
def server(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SshServer]:
    """A server that finds the runs of this test; $FTTUI_SSH logs in there directly."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    server = SshServer(tmp_path / "ssh")
    monkeypatch.setenv("FTTUI_SSH", server.command)
    yield server
    server.close()


@pytest.fixture
def link(server: SshServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Link]:
    """A bad link to that server; $FTTUI_SSH goes through it."""
    link = Link(server.port)
    server.trust(server.folder / "host.pub", link.port)
    monkeypatch.setenv("FTTUI_SSH", server.command_with(port=link.port))
    yield link
    link.close()


async def back_again(watcher: RemoteWatcher) -> None:
    """Live, with news."""
    before = len(watcher.records)
    await eventually(lambda: watcher.link is State.LIVE and len(watcher.records) > before + 20)


def ssh_clients() -> list[psutil.Process]:
    return [p for p in psutil.Process().children(recursive=True) if p.name() == "ssh"]


def test_the_command_line_over_ssh(start_run: StartRun, server: SshServer) -> None:
    run, _ = start_run()
    listed = fttui("ls", "box")
    assert f"box:{run.id}" in listed.stdout, listed.stderr
    done = fttui("ctl", f"box:{run.id}", "note", 'it\'s $HOME; "quoted"')
    assert done.returncode == 0, done.stderr
    assert 'it\'s $HOME; "quoted"' in done.stdout


async def test_no_cut_of_any_kind_loses_or_doubles_anything(
    start_run: StartRun, server: SshServer, link: Link
) -> None:
    run, _ = start_run("--step-s", "0.005")
    async with attached(run.id) as watcher:
        await back_again(watcher)
        note = watcher.session.submit(AddNote(text="before"))
        link.cut()
        await back_again(watcher)
        ssh_clients()[0].kill()
        during = watcher.session.submit(AddNote(text="while it is down"))
        await back_again(watcher)
        server.stop()
        await eventually(lambda: watcher.link is State.LOST)
        server.start()
        await back_again(watcher)
        link.cut_after_bytes = 30_000
        link.cut()
        connections = link.connections
        await eventually(lambda: link.connections > connections + 2)
        link.cut_after_bytes = None
        await back_again(watcher)
        await eventually(lambda: {note, during} <= watcher.answers.keys())
        await eventually(lambda: applied(watcher, note) and applied(watcher, during))
        assert len(applied(watcher, note)) == len(applied(watcher, during)) == 1
        assert len(list(FrameReader(run.control))) == 2
        assert watcher.whole()
        assert watcher.marks() == journal_payloads(run)[: len(watcher.records)]


async def test_a_link_that_swallows_everything_is_noticed(
    start_run: StartRun, link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fttui.tui.client import remote

    monkeypatch.setattr(remote, "LOST_S", 4.0)
    run, _ = start_run()
    async with attached(run.id) as watcher:
        await back_again(watcher)
        link.swallow()
        await eventually(lambda: watcher.link is State.STALE)
        await eventually(lambda: watcher.link is State.LOST)
        link.swallow(False)
        await back_again(watcher)
        assert watcher.whole()


@pytest.mark.parametrize("why", ["a stranger's key", "another host key"])
async def test_a_refused_login_is_tried_once(
    start_run: StartRun, server: SshServer, link: Link, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, _ = start_run()
    async with attached(run.id) as watcher:
        await back_again(watcher)
        if why == "another host key":
            server.trust(server.folder / "stranger.pub", link.port)
            said = "the key of box is not the one that is known"
        else:
            monkeypatch.setenv("FTTUI_SSH", server.command_with("stranger", link.port))
            said = "box refused the login"
        connections = link.connections
        link.cut()
        with pytest.raises(LoginRefused, match=said):
            await asyncio.wait_for(asyncio.shield(watcher.task), 30)
        assert link.connections == connections + 1
    first = fttui("attach", "box")
    assert first.returncode == 255
    assert said in first.stderr
    assert link.connections == connections + 2


def test_an_unreachable_machine_is_told_with_sshs_own_words(server: SshServer, runs: Path) -> None:
    server.stop()
    done = fttui("ls", "box")
    assert done.returncode == 255
    assert "Connection refused" in done.stderr


async def test_a_forced_command_limits_a_key_to_watching(
    start_run: StartRun, server: SshServer
) -> None:
    run, _ = start_run()
    command = f"{sys.executable} -P -m fttui.tui bridge --read-only --run {run.id}"
    server.authorize(f'command="{command}",restrict')
    async with attached(None) as watcher:
        await back_again(watcher)
        id_ = watcher.session.submit(Pause())
        await eventually(lambda: id_ in watcher.answers)
        assert "only watch" in watcher.answers[id_].reason
    refused = fttui("ctl", "box:other", "pause")
    assert refused.returncode == 3
    assert f"only {run.id} is shown" in refused.stderr
    injected = fttui("ls", "box", "--remote-cmd", "touch /tmp/never;")
    assert injected.returncode == 0
    assert not Path("/tmp/never").exists()


async def test_a_frozen_far_side_is_left_and_found_again(
    start_run: StartRun, server: SshServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fttui.tui.client import remote

    monkeypatch.setattr(remote, "LOST_S", 4.0)
    monkeypatch.setattr(far_module, "_EXIT_S", 0.2)
    run, _ = start_run()
    async with attached(run.id) as watcher:
        await back_again(watcher)
        frozen = [p for p in server.sessions() if p.name().startswith("sshd")]
        for process in frozen:
            os.kill(process.pid, signal.SIGSTOP)
        await eventually(lambda: watcher.link is State.LOST)
        await back_again(watcher)
        for process in frozen:
            os.kill(process.pid, signal.SIGKILL)
        assert watcher.whole()
