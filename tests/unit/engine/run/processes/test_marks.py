from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fttui.engine.errors import NotOwner
from fttui.engine.run.processes.marks import (
    MAX_SOCKET_PATH_BYTES,
    Endpoint,
    EngineMark,
    ProcessMark,
    read_endpoint,
    read_engine,
    runtime_folder,
    write_mark,
)
from fttui.engine.run.run_dir import RunDirectory


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ft-", dir="/tmp") as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        yield Path(folder)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_each_run_gets_a_private_short_folder_of_its_own(tmp_path: Path, runtime: Path) -> None:
    first, second = RunDirectory(tmp_path / "a"), RunDirectory(tmp_path / "b")
    folder = runtime_folder(first)
    assert folder == runtime_folder(first)
    assert folder != runtime_folder(second)
    assert folder.is_relative_to(runtime)
    assert mode(folder) == mode(folder.parent) == 0o700
    assert len(os.fsencode(folder / "pub")) <= MAX_SOCKET_PATH_BYTES


def test_a_base_that_is_not_there_yet_is_made(
    tmp_path: Path, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime / "later"))
    assert mode(runtime_folder(RunDirectory(tmp_path))) == 0o700


def test_a_folder_open_to_others_is_closed(tmp_path: Path, runtime: Path) -> None:
    run = RunDirectory(tmp_path)
    folder = runtime_folder(run)
    folder.chmod(0o777)
    folder.parent.chmod(0o777)
    assert runtime_folder(run) == folder
    assert mode(folder) == mode(folder.parent) == 0o700


def test_a_link_in_its_place_is_refused(tmp_path: Path, runtime: Path) -> None:
    run = RunDirectory(tmp_path)
    folder = runtime_folder(run)
    folder.rmdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    folder.symlink_to(elsewhere)
    with pytest.raises(NotOwner, match="not a folder of yours"):
        runtime_folder(run)


def test_a_long_runtime_path_falls_back_to_a_short_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / ("long" * 30)))
    assert len(os.fsencode(runtime_folder(RunDirectory(tmp_path)) / "pub")) <= 107


@pytest.mark.parametrize(("length", "used"), [(59, True), (60, False)])
def test_a_runtime_path_of_60_characters_is_too_long(
    tmp_path: Path, runtime: Path, monkeypatch: pytest.MonkeyPatch, length: int, used: bool
) -> None:
    base = runtime / ("x" * (length - len(str(runtime)) - 1))
    base.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(base))
    assert runtime_folder(RunDirectory(tmp_path)).is_relative_to(base) is used


def test_this_process_is_alive_and_a_later_one_of_its_pid_is_not(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    assert read_endpoint(run) is None
    me = ProcessMark.current()
    assert me.alive
    write_mark(run.endpoint, Endpoint(pid=me.pid, started=me.started, folder="/x"))
    endpoint = read_endpoint(run)
    assert endpoint is not None
    assert endpoint.alive
    reused = Endpoint(pid=me.pid, started=me.started - 100, folder="/x")
    assert not reused.alive


def alive(mark: EngineMark) -> bool:
    """Asked anew each time: the type checker takes a property for a constant."""
    return mark.alive


def test_an_ended_and_an_unreaped_process_are_dead(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    from fttui.engine.run.files import process_started

    started = process_started(child.pid)
    assert started is not None
    write_mark(run.engine, EngineMark(pid=child.pid, started=started, incarnation=2))
    mark = read_engine(run)
    assert mark is not None
    assert alive(mark)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not alive(mark)  # a zombie: it exists, but will never do anything again
    child.communicate()
    assert not alive(mark)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"pid": "x"}'])
def test_a_broken_mark_counts_as_none(tmp_path: Path, content: bytes) -> None:
    run = RunDirectory(tmp_path)
    run.engine.write_bytes(content)
    assert read_engine(run) is None
