from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from fttui.engine.errors import NewerRun, NoSuchRun
from fttui.engine.run.files import last_lines, write_atomically
from fttui.engine.run.run_dir import FORMAT, RunDirectory, runs_root
from fttui.tui.cli.main import main
from tests.support.engine_double import make_run


def test_a_new_run_is_private_and_knows_itself(tmp_path: Path) -> None:
    run = make_run(tmp_path, name="my run/2")
    assert run.id.startswith("my-run-2-")
    assert run.path.stat().st_mode & 0o777 == 0o700
    assert run.identity().name == "my run/2"
    assert run.checkpoints.is_dir()
    assert run.logs.is_dir()


def test_runs_started_in_the_same_second_differ(tmp_path: Path) -> None:
    assert len({make_run(tmp_path).id for _ in range(4)}) == 4


def test_a_run_is_resumed_by_the_engine_and_that_of_a_script_by_the_script(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    assert run.resume_hint == f"resume it with: fttui run --resume {run.id}"
    identity = msgspec.structs.replace(run.identity(), script="python train.py")
    run.write(run.identity_file, msgspec.json.encode(identity))
    assert run.resume_hint == "start its script again for a new run: python train.py"
    assert RunDirectory(tmp_path / "gone").resume_hint.endswith("fttui run --resume gone")


def test_any_other_folder_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(NoSuchRun, match="not a run folder"):
        RunDirectory(tmp_path).identity()


def with_format(run: RunDirectory, number: object) -> None:
    found = msgspec.json.decode(run.identity_file.read_bytes()) | {"format": number}
    run.write(run.identity_file, msgspec.json.encode(found | {"name": {"of": "another kind"}}))


def test_a_new_run_states_its_format_and_a_folder_without_one_is_of_the_first(
    tmp_path: Path,
) -> None:
    run = make_run(tmp_path)
    found = msgspec.json.decode(run.identity_file.read_bytes())
    assert found["format"] == FORMAT
    del found["format"]
    run.write(run.identity_file, msgspec.json.encode(found))
    assert run.identity().format == 1


def test_a_run_of_a_newer_format_is_refused_with_what_to_do(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    with_format(run, FORMAT + 1)
    with pytest.raises(NewerRun, match=f"got run folder format {FORMAT + 1}, expected at most"):
        run.identity()
    with_format(run, 0)
    with pytest.raises(NoSuchRun, match="not a run folder"):
        run.identity()


@pytest.mark.parametrize("by_folder", [False, True], ids=["by name", "by folder"])
@pytest.mark.parametrize("command", ["show", "events", "report", "ctl"])
def test_no_command_opens_a_run_of_a_newer_format(
    command: str, by_folder: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path)
    with_format(run, FORMAT + 1)
    name = str(run.path) if by_folder else run.id
    words = [command, "--runs-dir", str(tmp_path), name, *(["pause"] if command == "ctl" else [])]
    assert main(words) == NewerRun.exit_code
    assert "pip install --upgrade fttui" in capsys.readouterr().err


def test_the_list_names_a_run_of_a_newer_format(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other, run = make_run(tmp_path), make_run(tmp_path)
    with_format(run, FORMAT + 1)
    assert main(["ls", "--runs-dir", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert other.id in said
    assert f"got run folder format {FORMAT + 1}" in " ".join(said.split())


def test_the_option_wins_over_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FTTUI_RUNS", str(tmp_path / "env"))
    assert runs_root() == tmp_path / "env"
    assert runs_root(str(tmp_path / "option")) == tmp_path / "option"
    monkeypatch.delenv("FTTUI_RUNS")
    assert runs_root() == Path("runs").absolute()


def test_a_failed_write_keeps_the_old_file_and_leaves_nothing(tmp_path: Path) -> None:
    file = tmp_path / "f"
    write_atomically(file, b"old")
    with pytest.raises(TypeError):
        write_atomically(file, 3)  # type: ignore[arg-type]  # any failure while writing
    assert file.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [file]


def test_the_last_lines_of_a_log_without_blank_ones(tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_bytes(b"one\n\ntwo\n\xff three\n\n")
    assert last_lines(file, 2) == ["two", "� three"]
    assert last_lines(tmp_path / "none", 2) == []


def test_a_name_may_be_longer_than_a_folders(tmp_path: Path) -> None:
    run = make_run(tmp_path, name="n" * 300)
    assert run.id.startswith("n" * 100)
    assert len(run.id) < 130
    assert run.identity().name == "n" * 300
