"""The load balancing loss of experts is a part of preference training too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from fttui.engine.config.load import parse_resolved
from fttui.engine.protocol.events import RunStarted, StepFinished
from tests.support.architectures import settings, tiny_model
from tests.support.training import new_run, play

from .test_start_adapter import log_probs, plain_steps

WEIGHT = 0.05


def started(folder: Path, task: str, **sets: Any) -> Any:
    model = tiny_model("mixtral", folder)
    return new_run(folder, task, **{**settings(model, "off"), **sets})


def test_dpo_equals_plain_training_with_the_balance(tmp_path: Path) -> None:
    run = started(tmp_path, "dpo", train__router_aux_loss=WEIGHT)
    played = play(run)
    config = parse_resolved(run.config.read_text())
    micro_batches = config.train.accumulation
    pairs = config.train.micro_batch_size * micro_batches

    def loss_of(model: Any, batch: Any) -> torch.Tensor:
        with torch.no_grad(), model.disable_adapter():
            before = log_probs(model, batch)
        chosen, rejected = (log_probs(model, batch) - before).chunk(2)
        preference = -F.logsigmoid(config.preference.beta * (chosen - rejected)).sum() / pairs
        ids, mask = batch["input_ids"], batch["attention_mask"]
        outputs = model(input_ids=ids, attention_mask=mask, output_router_logits=True)
        return preference + WEIGHT * outputs.aux_loss / micro_batches

    assert list(played.losses().values()) == pytest.approx(plain_steps(run, loss_of), abs=5e-5)
    assert all(step.parts["balance"] > 0 for step in played.events(StepFinished))
    assert (
        "weight of the load balancing loss 0.05" in played.events(RunStarted)[-1].facts["experts"]
    )


def test_kto_has_the_balance_of_the_model_unless_it_is_switched_off(tmp_path: Path) -> None:
    own = play(started(tmp_path, "kto"))
    (tmp_path / "off").mkdir()
    off = play(started(tmp_path / "off", "kto", train__router_aux_loss=0))
    assert all(step.parts["balance"] > 0 for step in own.events(StepFinished))
    assert all("balance" not in step.parts for step in off.events(StepFinished))
    assert own.losses()[1] > off.losses()[1]
