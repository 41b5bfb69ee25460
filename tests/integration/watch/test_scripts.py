"""Whole scripts: `fttui exec` without a change to the script, and two ranks under torchrun."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fttui.engine.protocol.events import CommandFailed, RolledBack, RunEnded, RunStarted
from fttui.engine.protocol.states import RunState
from fttui.engine.run.run_dir import RunDirectory
from tests.support.foreign import both_ways
from tests.support.ranks import in_ranks
from tests.support.training import read_records

ROOT = Path(__file__).resolve().parents[3]

STOCK = """
import sys
from pathlib import Path
from tests.support.foreign import plain
trainer = plain(Path(sys.argv[1]), num_train_epochs=1)
print("hello from the script")
trainer.train()
print("trained", trainer.state.global_step)
sys.exit(int(sys.argv[2]))
"""

CHAINED = 'import os\nopen(os.environ["CHAINED"], "a").write("ran\\n")\n'


def environment(folder: Path, **more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{ROOT}", "HOME": str(folder), **more}


def run_exec(folder: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fttui.tui", "exec", "--headless", "--runs-dir"]
    return subprocess.run(
        [*command, str(folder / "runs"), "--", *words],
        capture_output=True,
        text=True,
        timeout=110,
        env=environment(folder, **more),
        check=False,
    )


def only_run(folder: Path) -> RunDirectory:
    (path,) = [path for path in (folder / "runs").iterdir() if not path.name.startswith(".")]
    return RunDirectory(path)


@pytest.mark.slow
def test_a_stock_script_is_watched_and_its_exit_code_passed_on(tmp_path: Path) -> None:
    script, hidden = tmp_path / "stock.py", tmp_path / "hidden"
    script.write_text(STOCK)
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text(CHAINED)
    done = run_exec(
        tmp_path,
        *(sys.executable, str(script), str(tmp_path), "3"),
        PYTHONPATH=f"{hidden}{os.pathsep}{ROOT}",
        CHAINED=str(tmp_path / "chained"),
    )
    assert done.returncode == 3, done.stdout + done.stderr
    assert "Trainer on GPT2LMHeadModel, 6 steps" in done.stdout
    assert "hello from the script" not in done.stdout
    run = only_run(tmp_path)
    output = run.engine_log.read_text()
    assert "hello from the script" in output
    assert "trained 6" in output
    assert (tmp_path / "chained").read_text()
    (ended,) = [r.event for r in read_records(run) if isinstance(r.event, RunEnded)]
    assert ended.state is RunState.FINISHED
    assert run.identity().script
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [run.id]


@pytest.mark.slow
def test_a_command_without_a_trainer_passes_its_end_on(tmp_path: Path) -> None:
    code = "import sys; print('no trainer here'); sys.exit(5)"
    done = run_exec(tmp_path, sys.executable, "-c", code)
    assert done.returncode == 5
    assert "no trainer here" in done.stdout
    assert "fttui found no training to watch" in done.stdout


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_two_ranks_roll_back_together_and_end_like_uninterrupted_ones(tmp_path: Path) -> None:
    assert in_ranks(2, both_ways, tmp_path) == [0, 0]
    for rank in range(2):
        (wanted, alone), (weights, logged) = torch.load(
            tmp_path / f"rank-{rank}.pt", weights_only=False
        )
        assert torch.equal(weights, wanted)
        assert logged == alone
    records = read_records(only_run(tmp_path))
    assert [r.event for r in records if isinstance(r.event, CommandFailed)] == []
    back = [r.event for r in records if isinstance(r.event, RolledBack)]
    assert len(back) == 2
    assert back[1].to_step == 0
    started = [r.event for r in records if isinstance(r.event, RunStarted)][-1]
    assert len(started.devices) == 2
