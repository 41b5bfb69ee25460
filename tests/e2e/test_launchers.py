"""A run under torchrun and accelerate: one process of a node starts the ranks, the others wait."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cli import events, only_run
from tests.support.training import write_config

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600), pytest.mark.long]
LAUNCHERS = {
    "torchrun": ["torch.distributed.run", "--nproc-per-node", "2"],
    "accelerate": ["accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"],
}


@pytest.mark.parametrize("name", list(LAUNCHERS))
def test_two_processes_of_a_launcher_are_one_run(tmp_path: Path, name: str) -> None:
    path, sets = write_config(tmp_path, train__batch=2, train__steps=4)
    words = [str(path), *(word for one in sets for word in ("--set", one))]
    own = "--no_python" if name == "accelerate" else "--no-python"
    command = [sys.executable, "-m", "fttui.tui", "run", *words, "--nodes", name]
    ended = subprocess.run(
        [sys.executable, "-m", *LAUNCHERS[name], own, *command],
        capture_output=True,
        text=True,
        timeout=500,
        env={**os.environ, "FTTUI_RUNS": str(tmp_path / "runs")},
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert f"{name}: process 1 of 2 on node 0 of 1" in ended.stdout
    found = events(only_run(tmp_path / "runs"), tmp_path / "runs")
    started = [one for one in found if one["type"] == "RunStarted" and one["devices"]]
    assert [len(one["devices"]) for one in started] == [2], (found, ended.stdout + ended.stderr)
    assert [one["step"] for one in found if one["type"] == "StepFinished"] == [1, 2, 3, 4]
