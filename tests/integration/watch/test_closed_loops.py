"""Trainers of transformers before 5.6, whose loop cannot be entered again: view and control.

With a newer release, `.ci/oldest` runs these tests in an environment of its own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Trainer

from fttui.engine.protocol.events import (
    CheckpointSaved,
    CommandApplied,
    CommandFailed,
    EvalFinished,
    LogEmitted,
    RunEnded,
    RunStarted,
    StateChanged,
    StepFinished,
)
from fttui.engine.protocol.states import RunState
from fttui.engine.watch.huggingface.capabilities import loop_can_be_left
from fttui.engine.watch.trainer_list import what_works
from tests.support.foreign import BUILDERS, Trained, plain, play_watched, sft, train_alone
from tests.support.played import Played, Script

pytestmark = pytest.mark.skipif(
    loop_can_be_left(Trainer), reason="the installed transformers has a loop that can be left"
)
Patch = pytest.MonkeyPatch
BUILT = ["Trainer", "Trainer streaming", "Trainer workers", "Trainer evaluating"]
BUILT += ["SFT", "SFT packed", "DPO", "KTO", "reward", "MNRL", "CachedMNRL"]


def played_of(trained: Trained) -> Played:
    assert trained.played is not None
    return trained.played


def problems(played: Played) -> list[str]:
    return [e.text for e in played.events(LogEmitted) if e.level in ("error", "warning")]


@pytest.mark.parametrize("name", BUILT)
def test_a_watched_training_is_the_same_and_every_step_is_seen(
    name: str, tmp_path: Path, monkeypatch: Patch
) -> None:
    alone = train_alone(BUILDERS[name], tmp_path / "alone")
    script = Script({3: ["checkpoint", "pause"]}, states={RunState.PAUSED: ["resume"]})
    watched = play_watched(BUILDERS[name], tmp_path / "watched", monkeypatch, script)
    played = played_of(watched)
    assert torch.equal(watched.weights, alone.weights)
    assert watched.logged == alone.logged
    assert problems(played) == []
    steps = played.events(StepFinished)
    assert len(steps) == alone.trainer.state.global_step
    for step, entry in zip(steps, (one for one in alone.logged if "loss" in one), strict=True):
        # At the end of a stream the trainer adds the loss of a micro-batch to the next step.
        added = step.loss_or_nan < entry["loss"] / 1.9
        assert added or step.loss == pytest.approx(entry["loss"], abs=2e-4)
    assert [e.state for e in played.events(StateChanged)].count(RunState.PAUSED) == 1
    assert played.events(CheckpointSaved)[-1].size_bytes > 0
    (ended,) = played.events(RunEnded)
    assert ended.state is RunState.FINISHED


def halved(folder: Path) -> Any:
    """A trainer whose schedule is really halved from the fifth update on."""
    trainer = plain(folder)
    make = trainer.create_scheduler

    def create_scheduler(*args: Any, **kwargs: Any) -> Any:
        schedule = make(*args, **kwargs)
        schedule.lr_lambdas = [
            lambda step, own=own: own(step) * (0.5 if step >= 5 else 1.0)
            for own in schedule.lr_lambdas
        ]
        return schedule

    trainer.create_scheduler = create_scheduler
    return trainer


def test_a_scaled_rate_is_that_of_a_scaled_schedule(tmp_path: Path, monkeypatch: Patch) -> None:
    wanted = train_alone(halved, tmp_path / "alone")
    script = Script({5: ["lr scale 0.5"]})
    watched = play_watched(plain, tmp_path / "watched", monkeypatch, script)
    assert torch.equal(watched.weights, wanted.weights)


@pytest.mark.parametrize("own", [1.0, 0.0])
def test_a_clip_takes_effect_also_where_the_trainer_clips_nothing(
    own: float, tmp_path: Path, monkeypatch: Patch
) -> None:
    def build(folder: Path) -> Any:
        return plain(folder, max_grad_norm=own, num_train_epochs=1)

    alone = train_alone(build, tmp_path / "alone")
    same = play_watched(build, tmp_path / "same", monkeypatch)
    assert torch.equal(same.weights, alone.weights)
    watched = play_watched(build, tmp_path / "clip", monkeypatch, Script({2: ["clip 0.01"]}))
    steps = played_of(watched).events(StepFinished)
    assert [step.clip for step in steps] == [own or None] * 2 + [0.01] * 4
    assert all(step.grad_norm for step in steps)
    assert not torch.equal(watched.weights, alone.weights)


def test_an_update_that_is_not_finite_changes_no_weight(tmp_path: Path, monkeypatch: Patch) -> None:
    def build(folder: Path) -> Any:
        trainer = plain(folder, num_train_epochs=2)
        compute = trainer.compute_loss

        def compute_loss(*args: Any, **kwargs: Any) -> Any:
            loss = compute(*args, **kwargs)
            return loss * float("nan") if trainer.state.global_step == 4 else loss

        trainer.compute_loss = compute_loss
        return trainer

    watched = play_watched(build, tmp_path, monkeypatch)
    steps = played_of(watched).events(StepFinished)
    assert [step.skipped for step in steps] == [number == 5 for number in range(1, 13)]
    assert torch.isfinite(watched.weights).all()


def test_what_would_go_back_is_refused_and_the_rest_is_done(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    script = Script({2: ["rollback 0", "skip 1"], 3: ["eval"], 4: ["sample w1 w2"], 6: ["stop"]})
    watched = play_watched(sft, tmp_path, monkeypatch, script)
    played = played_of(watched)
    reasons = [event.reason for event in played.events(CommandFailed)]
    assert len(reasons) == 2
    assert all("does not expose its position" in reason for reason in reasons)
    started = played.events(RunStarted)[-1]
    assert {"rollback", "recover", "skip", "profile"} <= set(started.refused)
    done = [event.command.split()[0] for event in played.events(CommandApplied)]
    assert done == ["eval", "sample", "stop"]
    assert played.events(EvalFinished)[0].metrics["loss"] > 0
    assert watched.trainer.state.global_step == 6
    (ended,) = played.events(RunEnded)
    assert ended.state is RunState.STOPPED


def test_an_evaluation_on_command_leaves_no_trace(tmp_path: Path, monkeypatch: Patch) -> None:
    alone = train_alone(plain, tmp_path / "alone")
    watched = play_watched(plain, tmp_path / "watched", monkeypatch, Script({3: ["eval"]}))
    assert torch.equal(watched.weights, alone.weights)
    last = {one["step"]: one for one in watched.logged if "loss" in one}
    assert last == {one["step"]: one for one in alone.logged if "loss" in one}


def test_a_training_that_the_script_resumes_is_watched_from_there(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    def saving(folder: Path) -> Any:
        return plain(folder, save_strategy="steps", save_steps=8)

    train_alone(saving, tmp_path / "first")
    saved = str(tmp_path / "first" / "out" / "checkpoint-8")
    alone = train_alone(plain, tmp_path / "alone", resume=saved)
    watched = play_watched(plain, tmp_path / "watched", monkeypatch, resume=saved)
    assert torch.equal(watched.weights, alone.weights)
    steps = played_of(watched).at(StepFinished)
    assert [step for step, _ in steps] == list(range(9, 19))
    assert steps[-1][1].epoch == pytest.approx(3.0)


def test_the_doctor_says_what_is_missing() -> None:
    told = what_works(Trainer)
    assert "no rollback, recover or skip" in told
    assert "5.6 or newer" in told
