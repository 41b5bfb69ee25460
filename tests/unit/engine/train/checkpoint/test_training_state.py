"""Files of a checkpoint are data: an object pickled into one is refused and never runs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model

from fttui.engine.errors import CheckpointError
from fttui.engine.protocol.settings import RunSettings
from fttui.engine.train.checkpoint.counters import Counters
from fttui.engine.train.checkpoint.training_state import TrainingState
from fttui.engine.train.position import Position


@pytest.fixture
def state() -> TrainingState:
    """The training state of one linear layer with an adapter."""
    model: Any = get_peft_model(
        torch.nn.Sequential(torch.nn.Linear(4, 4)),
        LoraConfig(r=2, target_modules=["0"]),
    )
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
    trainer: Any = SimpleNamespace(
        optimizer=optimizer,
        lr_scheduler=torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0),
        position=Position(),
        scaler=None,
        own_parameters={},
    )
    return TrainingState(trainer, model)


@pytest.fixture
def checkpoint(state: TrainingState, tmp_path: Path) -> Path:
    """A complete checkpoint of that state."""
    state.save_shared(tmp_path, Counters(step=3, position=6, desired=RunSettings()))
    state.save_own(tmp_path, rank=0)
    return tmp_path


class Malicious:
    """Creates a file when it is unpickled."""

    def __init__(self, victim: Path) -> None:
        self._victim = victim

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return Path.touch, (self._victim,)


def test_a_complete_checkpoint_is_staged(state: TrainingState, checkpoint: Path) -> None:
    assert state.stage(checkpoint, rank=0).counters.step == 3


@pytest.mark.parametrize("file", ["optimizer.pt", "rng-0.pt"])
def test_an_object_pickled_into_a_checkpoint_is_refused(
    state: TrainingState, checkpoint: Path, file: str
) -> None:
    victim = checkpoint / "created"
    stored = torch.load(checkpoint / file, weights_only=True)
    torch.save(stored | {"extra": Malicious(victim)}, checkpoint / file)
    with pytest.raises(CheckpointError, match=f"{file} cannot be read"):
        state.stage(checkpoint, rank=0)
    assert not victim.exists()
