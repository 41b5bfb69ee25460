"""The mean of checkpoints: evaluated at once, kept if it is better, without a trace in training."""

from __future__ import annotations

from pathlib import Path

import pytest
import safetensors.torch
import torch

from fttui.engine.protocol.events import (
    CheckpointSaved,
    CommandApplied,
    CommandFailed,
    EvalFinished,
    RolledBack,
)
from fttui.engine.protocol.settings import RunSettings
from fttui.engine.protocol.states import RunState
from fttui.engine.run.checkpoint_store import CheckpointStore
from fttui.engine.run.run_dir import RunDirectory
from fttui.tui.view_model.history.surviving import surviving_timeline
from tests.support.training import Script, new_run, play

MORE = {"train__steps": 8, "checkpoint__every": 2}
DIVERGED = {**MORE, "train__lr": 30, "train__schedule": "constant", "train__warmup": 0}
"""With such a rate, earlier weights are better than those of step 6."""


def weights(run: RunDirectory, name: str, file: str = "adapter_model") -> dict[str, torch.Tensor]:
    path = run.checkpoints / name / f"{file}.safetensors"
    return safetensors.torch.load(path.read_bytes())


def require_mean(run: RunDirectory, saved: CheckpointSaved, file: str = "adapter_model") -> None:
    parts = [weights(run, name, file) for name in saved.mean_of]
    for name, found in weights(run, saved.name, file).items():
        wanted = torch.stack([part[name].double() for part in parts]).mean(0)
        assert torch.equal(found, wanted.to(found.dtype))


def test_a_mean_is_evaluated_and_training_goes_on_as_if_nothing_had_happened(
    tmp_path: Path,
) -> None:
    (tmp_path / "plain").mkdir()
    (tmp_path / "soup").mkdir()
    plain = play(new_run(tmp_path / "plain", "sft", **MORE), Script())
    run = new_run(tmp_path / "soup", "sft", **MORE)
    asked = ["soup 3", "soup step-000000 2", "soup 2 9", "soup 7"]
    played = play(run, Script(commands={6: asked}))
    assert played.losses() == plain.losses()
    done = [e for e in played.events(CommandApplied) if e.command.startswith("soup")]
    assert [e.command for e in done] == asked[:2]
    for event in done:
        assert float(event.new.split(",")[0]) > float(event.old.removeprefix("loss "))
        assert ", not better, so not kept; the mean of step-" in event.new
    assert done[0].new.endswith("step-000000, step-000002, step-000004")
    assert not [e for e in played.events(CheckpointSaved) if e.mean_of]
    # the mean is no point of the curves, but the present weights, which were not evaluated, are
    assert [step for step, _ in played.at(EvalFinished)] == [6, 8]
    failed = {e.command: e.reason for e in played.events(CommandFailed)}
    assert "no complete checkpoint '9'" in failed["soup 2 9"]
    assert "checkpoints that led to the current weights exist" in failed["soup 7"]
    for name, found in weights(run, "step-000008").items():
        assert torch.equal(found, weights(plain.run, "step-000008")[name])


def test_a_better_mean_is_a_pinned_checkpoint_that_only_its_name_leads_to(tmp_path: Path) -> None:
    run = new_run(tmp_path, "sft", **DIVERGED, train__ema=0.5)
    played = play(run, Script(commands={6: ["soup step-000000 2"], 7: ["rollback 6"]}))
    (event,) = [e for e in played.events(CommandApplied) if e.command.startswith("soup")]
    (mean,) = [e for e in played.events(CheckpointSaved) if e.mean_of]
    assert f", kept as {mean.name}; the mean of" in event.new
    assert float(event.new.split(",")[0]) < float(event.old.removeprefix("loss "))
    assert mean.mean_of == ["step-000000", "step-000002"]
    assert mean.pinned
    assert mean.note == "mean of step-000000, step-000002"
    for file in ("adapter_model", "ema_model"):
        require_mean(run, mean, file)
    store = CheckpointStore(run)
    assert store.find(mean.name).mean_of == mean.mean_of
    assert not store.find("6").mean_of
    assert not store.find("last").mean_of
    (back,) = played.events(RolledBack)
    assert back.checkpoint != mean.name
    found = surviving_timeline(played.records, RunSettings())
    assert found.means == ()


@pytest.mark.long
def test_training_goes_on_from_a_mean_and_a_recipe_says_that_it_cannot(tmp_path: Path) -> None:
    run = new_run(tmp_path, "sft", **DIVERGED)
    script = Script(commands={6: ["soup step-000000 2"], 7: ["rollback step-000006"]})
    played = play(run, script)
    (mean,) = [e for e in played.events(CheckpointSaved) if e.mean_of]
    assert mean.name == "step-000006"  # the scheduled checkpoint of the step comes after it
    assert [e.checkpoint for e in played.events(RolledBack)] == [mean.name]
    assert surviving_timeline(played.records, RunSettings()).means == (mean.name,)
    assert played.outcome.state is RunState.FINISHED
