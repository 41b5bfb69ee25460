"""The same over a real OpenSSH server on this machine, with throw-away keys and a bad link.

Cuts, kills, frozen servers and logins refused on the way back are faults F28 and F29.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fttui.engine.protocol.commands import AddNote, Pause
from fttui.engine.protocol.states import RunState
from fttui.tui.view_model.connection_port import Link as State
from tests.support.engine_double import journal_payloads
from tests.support.link import Link
from tests.support.remote_machine import NO_SSHD, SSHD, SshServer
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


def test_the_command_line_over_ssh(start_run: StartRun, server: SshServer) -> None:
    run, _ = start_run()
    listed = fttui("ls", "box")
    assert f"box:{run.id}" in listed.stdout, listed.stderr
    done = fttui("ctl", f"box:{run.id}", "note", 'it\'s $HOME; "quoted"')
    assert done.returncode == 0, done.stderr
    assert 'it\'s $HOME; "quoted"' in done.stdout


async def test_an_engine_killed_in_mid_stream_is_told_and_its_successor_followed(
    start_run: StartRun, server: SshServer
) -> None:
    run, engine = start_run("--step-s", "0.002")
    async with attached(run.id) as watcher:
        await back_again(watcher)
        engine.kill()
        engine.wait()
        await eventually(lambda: watcher.beat and watcher.beat.state is RunState.LOST)
        await eventually(lambda: watcher.marks() == journal_payloads(run))
        id_ = watcher.session.submit(AddNote(text="to nobody"))
        await eventually(lambda: id_ in watcher.answers)
        assert "--resume" in watcher.answers[id_].reason
        start_run("--step-s", "0.002", run=run)
        await back_again(watcher)
        note = watcher.session.submit(AddNote(text="to the next one"))
        await eventually(lambda: applied(watcher, note))
        assert watcher.whole()
        assert watcher.marks() == journal_payloads(run)[: len(watcher.records)]


async def test_a_link_that_swallows_everything_is_noticed(
    start_run: StartRun, link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fttui.tui.connection.session import silence

    monkeypatch.setattr(silence, "LOST_S", 4.0)
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
def test_a_refused_login_is_told_and_tried_once(
    runs: Path, server: SshServer, link: Link, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "box refused the login"
    if why == "another host key":
        server.trust(server.folder / "stranger.pub", link.port)
        said = "the host key of box is not the known one"
    else:
        monkeypatch.setenv("FTTUI_SSH", server.command_with("stranger", link.port))
    first = fttui("attach", "box:")
    assert first.returncode == 255
    assert said in first.stderr
    assert link.connections == 1


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
        assert "only to watch" in watcher.answers[id_].reason
    refused = fttui("ctl", "box:other", "pause")
    assert refused.returncode == 3
    assert f"may only open {run.id}" in refused.stderr
    injected = fttui("ls", "box", "--remote-cmd", "touch /tmp/never;")
    assert injected.returncode == 0
    assert not Path("/tmp/never").exists()
