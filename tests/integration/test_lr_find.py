"""The learning rate range test: in the engine, and as the command that a person types."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fttui.engine.core.lr_range import LrRange
from fttui.engine.protocol.events import CheckpointSaved, EvalFinished, LrRangeTested, StepFinished
from fttui.engine.protocol.states import RunState
from fttui.engine.train.trainers.text import TextTrainer
from fttui.tui.cli.temporary_runs.lr_find import plot, summary
from tests.support.training import new_run, play, write_config

SWEEP = {
    "train__steps": 13,
    "train__schedule": "constant",
    "checkpoint__every": 0,
    "checkpoint__at_start": False,
}


def test_a_sweep_raises_the_rate_and_ends_without_a_trace(tmp_path: Path) -> None:
    run = new_run(tmp_path, "sft", train__lr=1e-4, train__lr_ratios__lora_b=2, **SWEEP)
    played = play(run, lr_range=LrRange(1e-4, 1e-1, 12))
    (found,) = played.events(LrRangeTested)
    assert found.rates == [event.lr for event in played.events(StepFinished)]
    assert found.rates == pytest.approx([1e-4 * 10 ** (step * 3 / 11) for step in range(12)])
    assert found.losses[0] != found.losses[-1]
    assert played.outcome.state is RunState.STOPPED
    assert not played.events(CheckpointSaved)
    assert not played.events(EvalFinished)


def test_a_sweep_ends_where_the_loss_diverges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A tiny model with norms survives any rate on some processors, so the loss is made to grow.
    compute_loss = TextTrainer.compute_loss

    def diverging(self: TextTrainer, *args: Any, **kwargs: Any) -> Any:
        return compute_loss(self, *args, **kwargs) * (20 if self.state.global_step >= 12 else 1)

    monkeypatch.setattr(TextTrainer, "compute_loss", diverging)
    run = new_run(tmp_path, "sft", train__lr=1e-2, **{**SWEEP, "train__steps": 31})
    (found,) = play(run, lr_range=LrRange(1e-2, 1.0, 30)).events(LrRangeTested)
    assert found.diverged
    assert 12 < len(found.rates) < 30
    assert next(iter(summary(found))).endswith("the loss diverged")
    drawn = plot(found, 78, 20)
    assert max(len(line) for line in drawn.splitlines()) <= 78
    assert any(0x2801 <= ord(sign) <= 0x28FF for sign in drawn)


COMMAND = [sys.executable, "-m", "fttui.tui.cli.main", "lr-find"]


# `make test` has the temporary run of a command in the tests of profiles.
@pytest.mark.long
def test_the_command_prints_figures_and_leaves_no_run(tmp_path: Path) -> None:
    config, _ = write_config(tmp_path, "sft")
    command = [*COMMAND, str(config), "--steps", "10"]
    done = subprocess.run(
        [*command, "--high", "0.1", "--json"], capture_output=True, text=True, timeout=110,
        cwd=tmp_path, env={**os.environ, "TMPDIR": str(tmp_path)}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert len(found["rates"]) == 10
    assert not (tmp_path / "runs").exists()
    assert not list(tmp_path.glob("fttui-probe-*"))


def test_a_range_that_falls_is_refused(tmp_path: Path) -> None:
    config, _ = write_config(tmp_path, "sft")
    wrong = subprocess.run(
        [*COMMAND, str(config), "--low", "1"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (wrong.returncode, "--high" in wrong.stderr) == (2, True)
