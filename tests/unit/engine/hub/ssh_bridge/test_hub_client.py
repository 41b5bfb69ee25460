"""The bridge connects to the hub that lives, and starts one only for a living engine."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from fttui.engine.hub.ssh_bridge import hub_client
from fttui.engine.hub.ssh_bridge.hub_client import HubClient
from fttui.engine.protocol.codec import PROTOCOL_VERSION
from fttui.engine.protocol.requests import Hello
from fttui.engine.run.processes.marks import Endpoint, EngineMark, ProcessMark, write_mark
from fttui.engine.run.run_dir import RunDirectory
from tests.support.engine_double import make_run


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return make_run(tmp_path)


@pytest.fixture
def client(run: RunDirectory) -> Iterator[HubClient]:
    made = HubClient(run, Hello(ref=0, version=PROTOCOL_VERSION, viewer="v", issuer="i"))
    yield made
    made.close()


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    monkeypatch.setattr(hub_client, "launch_hub", lambda run: found.append(run.id))
    return found


def connected(client: HubClient, now: float) -> bool:
    """Whether it is connected after the work that is due now."""
    client.maintain(now)
    return client.connected


def mark_hub(run: RunDirectory, folder: Path, *, alive: bool = True) -> None:
    """Mark this process as the hub of a run, with sockets that only this user can reach."""
    folder.mkdir(exist_ok=True)
    folder.chmod(0o700)
    for path in (folder / "pub", folder / "req"):
        path.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(path))
    me = ProcessMark.current()
    started = me.started if alive else me.started - 100
    write_mark(run.endpoint, Endpoint(pid=me.pid, started=started, folder=str(folder)))


def mark_engine(run: RunDirectory, *, alive: bool = True) -> None:
    me = ProcessMark.current()
    started = me.started if alive else me.started - 100
    write_mark(run.engine, EngineMark(pid=me.pid, started=started))


def test_a_living_hub_is_connected_and_a_dead_one_is_left(
    run: RunDirectory, client: HubClient, launched: list[str], tmp_path: Path
) -> None:
    mark_hub(run, tmp_path)
    assert connected(client, 10.0)
    assert len(client.sockets) == 2
    assert not client.engine_alive
    mark_hub(run, tmp_path, alive=False)
    assert connected(client, 10.1), "it looks five times a second"
    assert not connected(client, 10.2)
    assert client.sockets == []
    assert launched == [], "without an engine there is nothing to serve"


def test_a_new_hub_replaces_the_connection_to_the_old_one(
    run: RunDirectory, client: HubClient, launched: list[str], tmp_path: Path
) -> None:
    mark_hub(run, tmp_path)
    client.maintain(10.0)
    before = client.sockets
    client.maintain(11.0)
    assert client.sockets == before
    mark_hub(run, tmp_path / "new")
    assert connected(client, 12.0)
    assert client.sockets != before
    assert all(socket.closed for socket in before)


def test_the_hub_of_a_living_engine_is_started_every_two_seconds_until_it_answers(
    run: RunDirectory, client: HubClient, launched: list[str], tmp_path: Path
) -> None:
    mark_engine(run)
    mark_hub(run, tmp_path, alive=False)
    for now, count in ((10.0, 1), (11.9, 1), (12.1, 2), (13.0, 2)):
        client.maintain(now)
        assert len(launched) == count
    assert client.engine_alive
    mark_engine(run, alive=False)
    client.maintain(20.0)
    assert len(launched) == 2
    assert not client.engine_alive
