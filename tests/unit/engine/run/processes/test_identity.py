from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from fttui.engine.run.processes import identity as process_identity
from fttui.engine.run.processes.identity import (
    Liveness,
    ProcessIdentity,
    boot_seconds,
    current_identity,
    identity_of,
    is_locked,
)


@pytest.fixture
def child():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield process
    process.kill()
    process.wait()


def elsewhere(mine: ProcessIdentity, **changes: str) -> ProcessIdentity:
    return msgspec.structs.replace(mine, **changes)


def test_a_process_is_known_by_its_start(child) -> None:
    mine = identity_of(child.pid)
    assert mine is not None
    assert mine.liveness(child.pid) is Liveness.RUNNING
    assert mine.liveness(os.getpid()) is Liveness.EXITED, "another process of a reused pid"
    assert mine.liveness(2**22 + 1) is Liveness.EXITED
    child.kill()
    while mine.liveness(child.pid) is Liveness.RUNNING:
        pass
    assert mine.liveness(child.pid) is Liveness.EXITED, "nobody has taken its exit code yet"
    assert identity_of(child.pid) is None


def test_a_name_with_parentheses_and_spaces_is_no_field(tmp_path: Path) -> None:
    program = tmp_path / "a) S 1 (b"
    program.symlink_to("/bin/sleep")
    process = subprocess.Popen([str(program), "600"])
    try:
        found = identity_of(process.pid)
        assert found is not None
        assert int(found.start) > 0
    finally:
        process.kill()
        process.wait()


def test_the_wall_clock_has_no_part_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    before = current_identity()
    monkeypatch.setattr("time.time", lambda: 0.0)
    assert current_identity() == before
    assert before.liveness(os.getpid()) is Liveness.RUNNING


def test_after_a_restart_of_the_machine_it_is_gone() -> None:
    mine = elsewhere(current_identity(), boot="another start")
    assert mine.liveness(os.getpid()) is Liveness.EXITED


def test_another_machine_is_told_apart_from_a_restart() -> None:
    mine = current_identity()
    there = elsewhere(mine, boot="another start", host="gpu-box")
    assert there.liveness(os.getpid()) is Liveness.UNKNOWN_HOST
    if mine.machine:  # a machine without /etc/machine-id is known by its host name alone
        namesake = elsewhere(mine, boot="another start", machine="another machine")
        assert namesake.liveness(os.getpid()) is Liveness.UNKNOWN_HOST
    renamed = elsewhere(mine, host="renamed-meanwhile")
    assert renamed.liveness(os.getpid()) is Liveness.RUNNING
    assert mine.host == socket.gethostname()


def test_in_another_container_the_lock_decides(tmp_path: Path) -> None:
    mine = elsewhere(current_identity(), space="pid:[1]")
    lock = tmp_path / "lock"
    assert mine.liveness(os.getpid(), lock) is Liveness.UNKNOWN_HOST, "there is no lock to ask"
    lock.touch()
    assert mine.liveness(os.getpid(), lock) is Liveness.EXITED
    holder = subprocess.Popen(
        [sys.executable, "-c", "import fcntl,sys,time\nf=open(sys.argv[1],'r+')\n"
         "fcntl.lockf(f, fcntl.LOCK_EX)\nprint(flush=True)\ntime.sleep(600)", str(lock)],
        stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert holder.stdout is not None
        holder.stdout.readline()
        assert is_locked(lock) is True
        assert mine.liveness(os.getpid(), lock) is Liveness.RUNNING
    finally:
        holder.kill()
        holder.wait()
    assert is_locked(lock) is False


def test_asking_for_a_lock_does_not_take_it(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    lock.touch()
    assert is_locked(lock) is False
    with lock.open("r+") as file:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert is_locked(tmp_path / "none") is None


def test_on_macos_the_system_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {"ps": "S    Mon Jul  7 10:00:00 2025\n", "sysctl": "B0-07\n"}
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(process_identity, "_BOOT_ID", Path("/none"))
    monkeypatch.setattr(process_identity, "_answer", lambda *command: answers[command[0]].strip())
    process_identity._machine.cache_clear()
    try:
        mine = identity_of(1)
        assert mine is not None
        assert (mine.boot, mine.start) == ("B0-07", "Mon Jul  7 10:00:00 2025")
        assert mine.liveness(1) is Liveness.RUNNING
        assert is_locked(Path("/none")) is None
        answers["ps"] = "Z    Mon Jul  7 10:00:00 2025\n"
        assert mine.liveness(1) is Liveness.EXITED
        answers["ps"] = ""
        assert mine.liveness(1) is Liveness.EXITED
    finally:
        process_identity._machine.cache_clear()


def test_seconds_since_the_start_only_rise() -> None:
    first = boot_seconds()
    assert boot_seconds() >= first > 0
