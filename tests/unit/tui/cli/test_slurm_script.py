"""The batch script of a run under SLURM, and what is asked before it is written."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from fttui.tui.cli.cluster.slurm_script import SlurmRequest, batch_script, is_time
from fttui.tui.cli.main import main
from tests.support.training import write_config

REQUEST = SlurmRequest(
    name="fttui-a",
    command=["python", "-m", "fttui.tui", "run", "/a b/my.yaml"],
    nodes=2,
    gpus=4,
    time="12:00:00",
    options=["--partition=gpu"],
)
STANDINS = {
    "srun": 'echo srun "$@"; for _ in $(seq "$STEP_TICKS"); do [ -e stop ] && break; sleep 0.05; '
    'done; exit "$STEP_CODE"',
    "scancel": 'echo scancel "$@"; touch stop',
    "scontrol": 'echo scontrol "$@"',
}


def test_the_script_asks_for_nodes_gpus_and_a_signal_before_the_limit() -> None:
    lines = batch_script(REQUEST).splitlines()
    for option in ("nodes=2", "gpus-per-node=4", "time=12:00:00", "partition=gpu", "requeue",
                   "ntasks-per-node=1", "signal=B:USR1@120"):  # fmt: skip
        assert f"#SBATCH --{option}" in lines
    assert "'/a b/my.yaml' --nodes slurm --headless &" in batch_script(REQUEST)
    assert "gpus" not in batch_script(SlurmRequest("a", ["x"], 1, 0))


def _run_script(folder: Path, ticks: int, code: int, *, stop: bool) -> tuple[int, str]:
    """Run the script with small scripts in place of SLURM's commands."""
    for name, body in STANDINS.items():
        (folder / name).write_text(f"#!/bin/bash\n{body}\n")
        (folder / name).chmod(0o755)
    script = folder / "job.sh"
    script.write_text(batch_script(REQUEST))
    environment = {
        **os.environ,
        "PATH": f"{folder}:{os.environ['PATH']}",
        "SLURM_JOB_ID": "7",
        "STEP_TICKS": str(ticks),
        "STEP_CODE": str(code),
    }
    process = subprocess.Popen(
        ["bash", str(script)], stdout=subprocess.PIPE, text=True, env=environment, cwd=folder
    )
    assert process.stdout is not None
    output = process.stdout.readline()
    if stop:
        process.send_signal(signal.SIGUSR1)
    output += process.communicate(timeout=60)[0]
    return process.returncode, output


def test_a_run_that_ends_ends_the_job_with_its_exit_code(tmp_path: Path) -> None:
    code, output = _run_script(tmp_path, 0, 9, stop=False)
    assert code == 9
    assert "srun --ntasks-per-node=1" in output
    assert "requeue" not in output


def test_a_run_that_was_stopped_and_saved_is_queued_again(tmp_path: Path) -> None:
    code, output = _run_script(tmp_path, 400, 0, stop=True)
    assert code == 0
    assert "scancel --signal=TERM 7" in output
    assert "scontrol requeue 7" in output


def test_a_run_that_could_not_save_is_not_queued_again(tmp_path: Path) -> None:
    code, output = _run_script(tmp_path, 400, 13, stop=True)
    assert code == 13
    assert "requeue 7" not in output


def test_a_step_that_ends_before_scancel_returns_has_its_own_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(STANDINS, "scancel", 'echo scancel "$@"; touch stop; sleep 0.5')
    code, output = _run_script(tmp_path, 400, 0, stop=True)
    assert code == 0
    assert "scontrol requeue 7" in output


@pytest.mark.parametrize("text", ["90", "12:00", "12:00:00", "2-12", "2-12:00:00"])
def test_time_limits_as_slurm_writes_them(text: str) -> None:
    assert is_time(text)


@pytest.mark.parametrize("text", ["", "1h", "12:00:00:00", "-1", "2 days"])
def test_other_time_limits_are_refused(text: str) -> None:
    assert not is_time(text)


def test_a_dry_run_writes_the_script_and_submits_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, _ = write_config(tmp_path)
    script = tmp_path / "job.sbatch"
    words = ["launch", "slurm", str(path), "--nodes", "2", "--gpus", "4", "--dry-run"]
    code = main([*words, "--script", str(script), "--runs-dir", str(tmp_path / "runs")])
    assert code == 0
    assert "submit it with: sbatch" in capsys.readouterr().out
    text = script.read_text()
    assert "--set train.devices=4" in text
    assert f"--runs-dir {tmp_path / 'runs'}" in text
    assert "#SBATCH --job-name=fttui-tiny" in text


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--time", "1h"], "expected a time limit"),
        (["--nodes", "0"], "expected at least one node"),
        (["--set", "train.lrr=1"], "did you mean"),
    ],
)
def test_what_cannot_be_submitted_is_refused(
    words: list[str], expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, _ = write_config(tmp_path)
    code = main(["launch", "slurm", str(path), "--runs-dir", str(tmp_path), *words])
    assert code == 2
    assert expected in capsys.readouterr().err


def test_without_slurm_the_message_names_the_next_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _ = write_config(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["launch", "slurm", str(path), "--runs-dir", str(tmp_path / "runs")]) == 1
    assert "sbatch was not found" in capsys.readouterr().err
