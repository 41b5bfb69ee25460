"""A run under a real SLURM: submitted, stopped at its limit, started again, and gone on with."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import FTTUI, events, only_run
from tests.support.slurm import slurm_cluster, why_not
from tests.support.training import write_config
from tests.support.waiting import until

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.long,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(bool(why_not()), reason=why_not()),
]
PATIENCE_S = 400.0


def _steps(runs: Path) -> list[dict[str, Any]]:
    if not list(runs.glob("*/journal.log")):
        return []
    return [e for e in events(only_run(runs), runs) if e["type"] == "StepFinished"]


def test_a_job_on_two_nodes_is_queued_again_and_goes_on_with_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "slurm"
    folder.mkdir()
    runs = tmp_path / "runs"
    config, _ = write_config(tmp_path)
    sets = [word for one in ("train.steps=100000", "train.batch=2") for word in ("--set", one)]
    with slurm_cluster(folder) as environment:
        monkeypatch.chdir(tmp_path)
        launch = ["launch", "slurm", str(config), "--nodes", "2", "--gpus", "0", "--time", "60"]
        submitted = subprocess.run(
            [*FTTUI, *launch, *sets, "--runs-dir", str(runs)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert submitted.returncode == 0, submitted.stdout + submitted.stderr
        assert "open the app with: srun --jobid=" in submitted.stdout
        job = submitted.stdout.partition("submitted job ")[2].partition(";")[0]
        until(lambda: len(_steps(runs)) >= 3, PATIENCE_S)
        stop = ["scancel", "--signal=USR1", "--batch", job]
        subprocess.run(stop, env=environment, check=True, timeout=60)
        until(lambda: events(only_run(runs), runs)[-1]["type"] == "RunEnded", PATIENCE_S)
        ended = events(only_run(runs), runs)[-1]
        assert (ended["state"], ended["exit_code"]) == ("stopped", 0)
        subprocess.run(["scontrol", "release", job], env=environment, check=False, timeout=60)
        until(lambda: _steps(runs)[-1]["step"] > ended["step"], PATIENCE_S)
    found = events(only_run(runs), runs)
    starts = [e for e in found if e["type"] == "RunStarted"]
    assert {e["world_size"] for e in starts} == {2}
    assert {e["incarnation"] for e in starts} == {1, 2}
    assert (
        "the job was started before; resuming" in (tmp_path / f"fttui-tiny-{job}.log").read_text()
    )
