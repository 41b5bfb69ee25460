"""A sweep with real engines: a trial that fails, one that outlives its command, and the result."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from fttui.engine.config.load import load_config
from fttui.engine.run.run_index import list_runs
from fttui.tui.cli.sweep.prepare import whole_only
from fttui.tui.cli.sweep.study import Study
from fttui.tui.cli.sweep.sweep_folder import sweeps
from fttui.tui.view_model.sweep.search_space import parse_space
from tests.support.cli import fttui, start
from tests.support.training import write_config
from tests.support.waiting import until


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_sweep_whose_command_was_killed_goes_on_with_the_trial_that_trained_on(
    tmp_path: Path,
) -> None:
    config, _ = write_config(tmp_path, "sft")
    runs = tmp_path / "runs"
    words = ["train.lr=1e-3,1e30", "train.warmup=0,1", "--sampler", "grid", "--steps", "12",
             "--set", "eval.every=4"]  # fmt: skip
    first = start("sweep", str(config), *words, "--yes", runs=runs)
    until(lambda: any(one.step > 0 for one in list_runs(runs)), timeout_s=120)
    first.send_signal(signal.SIGKILL)
    first.wait()
    assert len(list_runs(runs)) == 1

    done = fttui("sweep", "--resume", runs=runs, timeout_s=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 trials: 2 with all steps, 2 failed" in done.stdout
    assert "failed: 2 trials halted, because loss or gradients were not finite" in done.stdout
    assert len(list_runs(runs)) == 4
    (folder,) = sweeps(runs)
    best = load_config(folder.best).config
    assert best.train.lr == 1e-3
    assert best.train.steps == 8  # that of the configuration, not of a trial
    plan = folder.plan()
    results = Study(folder, plan, parse_space(plan.words, whole_only)).results()
    assert [one.state for one in results] == ["complete", "complete", "failed", "failed"]
    assert {one.step for one in results if one.state == "complete"} == {12}
