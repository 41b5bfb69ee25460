"""Hubs and engines of other users are recognised before anything is sent to them."""

from __future__ import annotations

import os
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from fttui.engine.errors import NotOwner
from fttui.engine.run.processes import ownership
from fttui.engine.run.processes.left_over_sockets import clear_left_over
from fttui.engine.run.processes.marks import Endpoint, ProcessMark
from fttui.engine.run.processes.ownership import require_own_hub, require_own_process

AN_HOUR_S = 3600.0


@pytest.fixture
def parent() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ft-", dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture
def hub(parent: Path) -> Iterator[Endpoint]:
    """The endpoint of a hub that listens in this process."""
    folder = parent / ("a" * 12)
    folder.mkdir(mode=0o700)
    me = ProcessMark.current()
    with listening(folder / "pub"), listening(folder / "req"):
        yield Endpoint(pid=me.pid, started=me.started, identity=me.identity, folder=str(folder))


def listening(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    listener.listen()
    return listener


def be_somebody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    other = os.geteuid() + 1
    monkeypatch.setattr(ownership, "current_user", lambda: other)


def test_ones_own_hub_and_engine_are_used(hub: Endpoint) -> None:
    require_own_hub(hub)
    require_own_process(hub, "the engine")


def test_the_hub_and_the_engine_of_another_user_are_refused(
    hub: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    be_somebody_else(monkeypatch)
    with pytest.raises(NotOwner, match="nothing was sent"):
        require_own_hub(hub)
    with pytest.raises(NotOwner, match=f"the engine .process {os.getpid()}. belongs to"):
        require_own_process(hub, "the engine")


def test_sockets_that_another_user_answers_are_refused(
    hub: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ownership, "_listening_user", lambda _path: os.geteuid() + 1)
    with pytest.raises(NotOwner, match="the process behind"):
        require_own_hub(hub)


class SocketOfMacos:
    """Connects to anything, and has the credentials that the kernel of macOS would give."""

    def __init__(self, *_: object, xucred: bytes) -> None:
        self._xucred = xucred

    def __enter__(self) -> SocketOfMacos:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def settimeout(self, seconds: float) -> None:
        assert seconds > 0

    def connect(self, path: str) -> None:
        assert path.endswith("req")

    def getsockopt(self, level: int, option: int, size: int) -> bytes:
        assert (level, option) == (0, 1), "SOL_LOCAL, LOCAL_PEERCRED"
        return self._xucred[:size]


def xucred(uid: int, version: int = 0) -> bytes:
    """What a process of one group has: version, uid, number of groups, 16 groups."""
    groups = b"".join(n.to_bytes(4, "little") for n in [20, *[0] * 15])
    head = version.to_bytes(4, "little") + uid.to_bytes(4, "little")
    return head + (1).to_bytes(2, "little") + bytes(2) + groups


def on_macos(monkeypatch: pytest.MonkeyPatch, credentials: bytes) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(socket, "socket", partial(SocketOfMacos, xucred=credentials))


def test_a_peer_of_another_user_is_refused_on_macos(
    hub: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_macos(monkeypatch, xucred(os.geteuid() + 501))
    with pytest.raises(NotOwner, match="the process behind"):
        require_own_hub(hub)


@pytest.mark.parametrize(
    "credentials",
    [xucred(os.geteuid()), xucred(os.geteuid() + 1, version=1), xucred(os.geteuid() + 1)[:12]],
    ids=["own", "of another version", "too short"],
)
def test_only_credentials_that_can_be_read_refuse_a_peer_on_macos(
    hub: Endpoint, monkeypatch: pytest.MonkeyPatch, credentials: bytes
) -> None:
    on_macos(monkeypatch, credentials)
    require_own_hub(hub)


def test_a_system_that_cannot_be_asked_relies_on_folder_and_sockets(
    hub: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "freebsd14")
    require_own_hub(hub)


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o755])
def test_a_folder_that_others_may_enter_is_refused(hub: Endpoint, mode: int) -> None:
    Path(hub.folder).chmod(mode)
    with pytest.raises(NotOwner, match=f"mode {mode:o}, expected 700"):
        require_own_hub(hub)


def test_a_link_or_a_file_in_place_of_a_socket_is_refused(hub: Endpoint, parent: Path) -> None:
    link = parent / "link"
    link.symlink_to(hub.folder)
    with pytest.raises(NotOwner, match="is not a folder"):
        require_own_hub(Endpoint(pid=hub.pid, started=hub.started, folder=str(link)))
    (Path(hub.folder) / "req").unlink()
    (Path(hub.folder) / "req").write_text("")
    with pytest.raises(NotOwner, match="is not a socket"):
        require_own_hub(hub)


def test_folders_of_killed_hubs_are_cleared_away_and_no_others(hub: Endpoint, parent: Path) -> None:
    names = ("b" * 12, "c" * 12, "d" * 12, "notes", "e" * 12)
    empty, killed, kept, foreign, young = (parent / name for name in names)
    for folder in (empty, killed, kept, foreign, young):
        folder.mkdir(mode=0o700)
    listening(killed / "pub").close()
    (kept / "mine.txt").write_text("keep")
    for folder in (empty, killed, kept, foreign, Path(hub.folder)):
        old = time.time() - AN_HOUR_S
        os.utime(folder, (old, old))
    assert clear_left_over(parent) == 2
    assert not empty.exists()
    assert not killed.exists()
    assert (kept / "mine.txt").exists()
    assert all(folder.exists() for folder in (foreign, young, Path(hub.folder) / "req"))
