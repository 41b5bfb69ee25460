"""What `fttui exec` leaves in the runs folder, and what it says while nothing is watched."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from fttui.engine.errors import FttuiError
from fttui.tui.cli.execute import StartedScript, remove_left_over
from fttui.tui.cli.main import main
from tests.support.waiting import until

DAY_S = 86_400
WAITS = "import sys; print('begun', flush=True); sys.stdin = open(sys.argv[1]); sys.stdin.read()"


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of runs."""
    folder = tmp_path / "runs"
    monkeypatch.setenv("FTTUI_RUNS", str(folder))
    monkeypatch.delenv("FTTUI", raising=False)
    return folder


def started(runs: Path, code: str, *words: str) -> StartedScript:
    return StartedScript.start([sys.executable, "-c", code, *words], runs, None)


def left(runs: Path) -> list[Path]:
    return list(runs.iterdir())


def age(folder: Path, seconds: float) -> None:
    """Make a folder and its files look older."""
    moment = time.time() - seconds
    for path in (*folder.iterdir(), folder):
        os.utime(path, (moment, moment))


def test_a_silent_command_leaves_nothing(runs: Path) -> None:
    script = started(runs, "pass")
    assert script.exit_code == 0
    script.tidy()
    assert left(runs) == []


def test_a_command_that_cannot_start_leaves_nothing(runs: Path) -> None:
    with pytest.raises(FttuiError, match="no-such-program cannot be started: no such file"):
        StartedScript.start(["no-such-program"], runs, None)
    assert left(runs) == []


def test_output_without_a_run_is_kept_where_the_user_is_told(
    runs: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["exec", "--headless", "--", sys.executable, "-c", "print(5 * 5)"]) == 0
    said = capfd.readouterr().out
    (folder,) = left(runs)
    assert (folder / "output.log").read_text() == "25\n"
    assert "a training loop of your own needs fttui.watch(model=…, optimizer=…)" in said
    assert f"all of its output is in {folder / 'output.log'}, kept for 7 days" in said


def test_only_output_of_long_ago_is_removed(runs: Path) -> None:
    for _ in range(2):
        script = started(runs, "print(1)")
        assert script.exit_code == 0
        script.tidy()
    old, new = left(runs)
    age(old, 7 * DAY_S + 3)
    age(new, 7 * DAY_S - 6)
    assert remove_left_over(runs) == 1
    assert left(runs) == [new]


def test_nothing_is_removed_while_somebody_uses_it(runs: Path, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    script = started(runs, WAITS, str(fifo))
    until(lambda: script.log.read_text() == "begun\n")
    (folder,) = left(runs)
    age(folder, 8 * DAY_S)
    assert remove_left_over(runs) == 0
    script.tidy()  # as when the viewer ends before the command
    age(folder, 8 * DAY_S)
    assert remove_left_over(runs) == 0
    fifo.write_text("")
    assert script.exit_code == 0
    assert remove_left_over(runs) == 1
    assert left(runs) == []


def test_a_folder_that_a_killed_viewer_left_is_removed(runs: Path) -> None:
    folder = runs / ".exec-abc"
    folder.mkdir(parents=True)
    (folder / "some-run").write_text("/nowhere")
    assert remove_left_over(runs) == 0
    age(folder, 120)
    assert remove_left_over(runs) == 0
    assert left(runs) == []


def test_words_of_fttui_reach_the_user_while_nothing_is_watched(runs: Path) -> None:
    code = "import sys; sys.stderr.write('10 %\\rfttui: this trainer is not watched: X\\n50 %')"
    script = started(runs, code)
    assert script.exit_code == 0
    assert list(script.notices()) == ["this trainer is not watched: X"]
    assert list(script.notices()) == []


def test_switched_off_a_command_runs_as_without_fttui(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FTTUI", "off")
    replaced: list[list[str]] = []

    def execvp(file: str, words: list[str]) -> None:
        replaced.append(words)
        raise SystemExit(0)

    monkeypatch.setattr(os, "execvp", execvp)
    with pytest.raises(SystemExit):
        main(["exec", "--", "python", "train.py"])
    assert replaced == [["python", "train.py"]]
    assert not runs.exists()
