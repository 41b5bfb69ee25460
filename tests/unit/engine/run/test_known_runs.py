from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from fttui.engine.run.known_runs import known_runs, remember_run, state_folder
from tests.support.engine_double import make_run


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "fttui"


def entries() -> list[Path]:
    return sorted((state_folder() / "runs").iterdir())


def test_a_registered_run_is_found_again_with_its_interpreter(tmp_path: Path, state: Path) -> None:
    run = make_run(tmp_path)
    remember_run(run)
    remember_run(run)
    assert list(known_runs()) == [run]
    assert (state / "python").read_text() == f"{sys.executable}\n"
    assert (state / "runs").stat().st_mode & 0o777 == 0o700


def test_the_entry_of_a_deleted_run_is_removed(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    remember_run(run)
    shutil.rmtree(run.path)
    assert list(known_runs()) == []
    assert entries() == []


def test_a_folder_without_its_identity_keeps_its_entry_but_is_no_run(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    remember_run(run)
    run.identity_file.unlink()
    assert list(known_runs()) == []
    assert len(entries()) == 1


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff", b'{"path": 3}'])
def test_a_damaged_entry_hides_no_other_run(tmp_path: Path, content: bytes) -> None:
    run = make_run(tmp_path)
    remember_run(run)
    (state_folder() / "runs" / "0.json").write_bytes(content)
    assert list(known_runs()) == [run]


def test_a_home_that_cannot_be_written_costs_only_the_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    remember_run(make_run(tmp_path))
    assert list(known_runs()) == []


def test_the_state_folder_is_in_the_home_folder_without_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert state_folder() == tmp_path / ".local" / "state" / "fttui"
