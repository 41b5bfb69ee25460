"""A folder of runs that cannot be used: every command says why and what to do, before anything."""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fttui.engine.errors import ConfigError
from fttui.engine.run.run_dir import require_runs_folder
from fttui.tui.cli.main import build_parser, main

NOBODY = 65534
WORDS = {
    "run": ["--headless", "CONFIG"],
    "exec": ["--headless", "--", "true"],
    "check": ["CONFIG"],
    "attach": ["name"],
    "show": ["name"],
    "ctl": ["name", "pause"],
    "ls": [],
    "race": ["name", "lr=1e-4,2e-4"],
    "sweep": ["CONFIG", "train.lr=1e-4,2e-4"],
    "recipe": ["name"],
    "diff": ["name", "other"],
    "events": [],
    "report": ["name"],
    "export": ["--merged"],
    "bench": ["name", "--tasks", "a"],
    "bridge": [],
    "sync": ["name", "--to", "tensorboard"],
    "prometheus": ["name", "--port", "0"],
    "launch": ["slurm", "CONFIG", "--dry-run"],
    "mcp": [],
    "web": ["name"],
}
"""A command line of every command that takes --runs-dir."""


def commands_with_a_runs_dir() -> set[str]:
    parser = build_parser()
    (found,) = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    return {n for n, p in found.choices.items() if "--runs-dir" in p._option_string_actions}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "c.yaml"
    file.write_text("model: {id: a/b}\ndata: {train: c/d}\ntrain: {steps: 5}\n")
    return file


@contextlib.contextmanager
def without_privileges() -> Iterator[None]:
    """Root may do everything; nobody may not."""
    as_root = os.geteuid() == 0
    if as_root:
        os.seteuid(NOBODY)
    yield
    if as_root:
        os.seteuid(0)


@pytest.fixture
def elsewhere() -> Iterator[Path]:
    """A folder that anybody may look into, as pytest's own are not."""
    folder = Path(tempfile.mkdtemp(prefix="ft-", dir="/tmp"))
    folder.chmod(0o555)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


def test_every_command_that_takes_it_is_tried_here() -> None:
    assert commands_with_a_runs_dir() == set(WORDS)


@pytest.mark.parametrize("command", WORDS)
@pytest.mark.parametrize("place", ["file", "file/deeper/runs", "gone"])
def test_what_is_no_folder_is_told_with_the_way_out(
    tmp_path: Path,
    config: Path,
    capsys: pytest.CaptureFixture[str],
    command: str,
    place: str,
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    words = [str(config) if word == "CONFIG" else word for word in WORDS[command]]
    assert main([command, "--runs-dir", str(tmp_path / place), *words]) == 2
    said = capsys.readouterr().err
    kind = "broken link" if place == "gone" else "file"
    assert f"{tmp_path / place.partition('/')[0]} is a {kind}; expected a folder" in said
    assert "--runs-dir or $FTTUI_RUNS" in said
    assert "Errno" not in said


def test_a_folder_one_may_not_write_to(elsewhere: Path) -> None:
    runs = elsewhere / "missing" / "runs"
    with without_privileges():
        with pytest.raises(ConfigError, match=rf"{elsewhere} \(.*mode 555\).*you may write to"):
            require_runs_folder(runs, writing=True)
        require_runs_folder(runs)  # to read, it is only not there yet


def test_a_folder_one_may_not_look_into(elsewhere: Path) -> None:
    elsewhere.chmod(0o755)
    locked = elsewhere / "locked"
    locked.mkdir(mode=0o000)
    with without_privileges():
        for place in (locked, locked / "runs"):
            denied = rf"looked for in {place}: no permission for {locked} \(.*mode 0\)"
            with pytest.raises(ConfigError, match=denied):
                require_runs_folder(place)


def test_a_read_only_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read_only = os.statvfs_result((*os.statvfs(tmp_path)[:8], os.ST_RDONLY, 255))
    monkeypatch.setattr("os.statvfs", lambda _: read_only)
    monkeypatch.setattr("os.access", lambda _, mode, **__: not mode & os.W_OK)
    with pytest.raises(ConfigError, match="read-only file system"):
        require_runs_folder(tmp_path / "runs", writing=True)
    require_runs_folder(tmp_path)


@pytest.mark.parametrize(
    ("number", "code", "said"),
    [
        (errno.EROFS, 1, "cannot be used: read-only file system"),
        (errno.ENOSPC, 1, "cannot be used: no space left on device"),
        (errno.EACCES, 1, "cannot be used: permission denied"),
    ],
)
def test_what_the_system_refuses_later_is_told_in_words(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    number: int,
    code: int,
    said: str,
) -> None:
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number), str(tmp_path / "start.lock"))

    monkeypatch.setattr("fttui.tui.cli.ls.list_runs", fail)
    assert main(["ls", "--runs-dir", str(tmp_path)]) == code
    assert capsys.readouterr().err == f"fttui: {tmp_path / 'start.lock'} {said}\n"


def test_a_new_run_the_disk_does_not_take(
    tmp_path: Path, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fttui.engine.config.load import load_config
    from fttui.engine.errors import FttuiError
    from fttui.tui.connection.engine_process import new_run

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "x")

    monkeypatch.setattr("fttui.tui.connection.engine_process.create_run", full)
    with pytest.raises(FttuiError, match=f"cannot create a run in {tmp_path}: no space left"):
        new_run(tmp_path, config, load_config(config, []), [])


def test_the_folder_may_stand_before_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FTTUI_RUNS", str(tmp_path / "other"))
    (tmp_path / "mine").mkdir()
    assert main(["--runs-dir", str(tmp_path / "mine"), "ls"]) == 0
    assert f"no runs in {tmp_path / 'mine'}" in capsys.readouterr().out
