"""Trainers whose weights or updates are in the hands of a sharding engine, watched all the same.

Tiny trainers stand for them here; `tests.bench.launched` runs DeepSpeed and FSDP on two GPUs.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from fttui.engine.protocol.commands import SetPolicy
from fttui.engine.protocol.events import (
    AnomalyRaised,
    CheckpointSaved,
    LogEmitted,
    RunEnded,
    RunStarted,
    StepFinished,
)
from fttui.engine.protocol.states import RunState
from fttui.engine.watch.huggingface import capabilities
from tests.support.foreign import plain, play_watched, train_alone

Patch = pytest.MonkeyPatch


class ShardedNorm:
    """The gradient norm of sharded weights, as accelerate returns that of FSDP."""

    def __init__(self, norm: torch.Tensor) -> None:
        self._norm = norm

    def full_tensor(self) -> torch.Tensor:
        return self._norm


def sharded(folder: Path, *, poison: int = 0) -> Any:
    """A trainer with norms of that kind; the loss of one step is NaN, unless `poison` is 0."""
    trainer = plain(folder, num_train_epochs=1)
    clip, compute = trainer._clip_grad_norm, trainer.compute_loss
    trainer._clip_grad_norm = lambda model: ShardedNorm(clip(model))
    trainer._get_grad_norm = lambda model, grad_norm=None: float(grad_norm.full_tensor())

    def compute_loss(*args: Any, **kwargs: Any) -> Any:
        loss = compute(*args, **kwargs)
        return loss * math.nan if trainer.state.global_step + 1 == poison else loss

    trainer.compute_loss = compute_loss
    return trainer


@pytest.fixture(autouse=True)
def shards(monkeypatch: Patch) -> None:
    monkeypatch.setattr(capabilities, "_sharded", lambda trainer: "its weights are sharded")


def test_no_checkpoint_is_tried_and_the_norms_of_shards_are_read(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    alone = train_alone(sharded, tmp_path / "alone")
    watched = play_watched(sharded, tmp_path / "watched", monkeypatch, checkpoint_every=2)
    assert torch.equal(watched.weights, alone.weights)
    played = watched.played
    assert played is not None
    assert [(step.grad_norm or 0) > 0 for step in played.events(StepFinished)] == [True] * 6
    assert played.events(CheckpointSaved) == []
    assert [e.text for e in played.events(LogEmitted) if e.level == "error"] == []
    facts = played.events(RunStarted)[-1].facts
    assert facts["checkpoints"] == "none: its weights are sharded"
    (ended,) = played.events(RunEnded)
    assert ended.state is RunState.FINISHED


def test_an_update_that_cannot_be_refused_is_not_called_skipped(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    refused = capabilities.capabilities_of

    def unguarded(trainer: Any) -> capabilities.Capabilities:
        found = refused(trainer)
        reason = "its engine updates the weights"
        return capabilities.Capabilities({**found.refused, SetPolicy: reason}, exact=False)

    monkeypatch.setattr("fttui.engine.watch.huggingface.watch.capabilities_of", unguarded)
    watched = play_watched(lambda folder: sharded(folder, poison=3), tmp_path, monkeypatch)
    played = watched.played
    assert played is not None
    steps = played.events(StepFinished)
    assert math.isnan(steps[2].loss_or_nan)
    assert [step.skipped for step in steps] == [False] * 6
    assert not torch.isfinite(watched.weights).all()
    raised = [one.kind for one in played.events(AnomalyRaised)]
    assert "nonfinite" in raised
    assert "policy" in played.events(RunStarted)[-1].refused
