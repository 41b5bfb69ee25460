from __future__ import annotations

import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from fttui.engine.run.files import (
    free_bytes,
    is_alive,
    last_lines,
    process_started,
    write_atomically,
)
from fttui.engine.run.folder.open_folder import OpenFolder


def test_a_file_is_replaced_privately_and_leaves_no_other_file(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    write_atomically(file, b"one")
    write_atomically(file, b"two")
    assert file.read_bytes() == b"two"
    assert file.stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["a.json"]


def test_a_failed_write_keeps_the_old_file_and_leaves_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.json"
    write_atomically(file, b"one")

    def fail(*_: object) -> None:
        raise OSError(28, "no space")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="no space"):
        write_atomically(file, b"two")
    assert file.read_bytes() == b"one"
    assert os.listdir(tmp_path) == ["a.json"]


def test_the_last_lines_leave_out_empty_ones(tmp_path: Path) -> None:
    file = tmp_path / "log"
    assert last_lines(file, 3) == []
    file.write_bytes(b"one\n\ntwo\n  \nthr\xff\n")
    assert last_lines(file, 2) == ["two", "thr\ufffd"]
    assert last_lines(file, 9) == ["one", "two", "thr\ufffd"]


def test_only_the_end_of_a_long_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_text("".join(f"{number:03}\n" for number in range(100)))
    assert last_lines(file, 100, limit_bytes=8) == ["098", "099"]


def test_free_space_is_the_share_of_this_user_and_unknown_without_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    free = free_bytes(tmp_path)
    assert free is not None
    assert free == pytest.approx(shutil.disk_usage(tmp_path).free, rel=0.2)
    assert free_bytes(tmp_path / "none") is None


def test_a_process_is_alive_only_with_its_own_start_time() -> None:
    started = process_started(os.getpid())
    assert started is not None
    assert started == psutil.Process().create_time()
    assert is_alive(os.getpid(), started)
    assert is_alive(os.getpid(), started + 0.9)
    assert not is_alive(os.getpid(), started + 1.0)
    assert not is_alive(os.getpid(), started - 1.0)
    assert process_started(2**22 + 1) is None
    assert not is_alive(2**22 + 1, started)


@pytest.mark.parametrize(
    ("user", "blocks", "expected"), [(1000, 100, 40), (0, 100, 50), (1000, 0, None), (0, 0, None)]
)
def test_free_space_is_that_of_the_user_and_unknown_where_no_sizes_are_told(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    user: int,
    blocks: int,
    expected: int | None,
) -> None:
    told = os.statvfs_result((10, 10, blocks, blocks // 20, blocks // 25, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _folder: told)
    monkeypatch.setattr(os, "geteuid", lambda: user)
    assert free_bytes(tmp_path) == expected


@pytest.mark.parametrize("form", ["path", "folder"])
def test_threads_that_replace_the_same_file_at_once_do_not_disturb_each_other(
    tmp_path: Path, form: str
) -> None:
    begin = threading.Barrier(4)

    def replace(content: bytes) -> None:
        begin.wait()
        for _ in range(25):
            if form == "path":
                write_atomically(tmp_path / "state.json", content)
                continue
            with OpenFolder(tmp_path) as folder:
                folder.write("state.json", content)

    with ThreadPoolExecutor(4) as pool:
        contents = [bytes([65 + number]) * 10_000 for number in range(4)]
        list(pool.map(replace, contents))
    assert (tmp_path / "state.json").read_bytes() in contents
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"]
