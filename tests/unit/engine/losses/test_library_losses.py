"""`fttui.losses` in the trainer of a user: the loss that transformers and TRL would take."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from tests.support.tiny import tiny_llama

losses: Any = import_module("fttui.losses")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from transformers import AutoModelForCausalLM

    folder: Path = tiny_llama(tmp_path_factory.mktemp("model"))
    return AutoModelForCausalLM.from_pretrained(folder)


def batch() -> dict[str, Any]:
    ids = torch.randint(4, 250, (2, 9), generator=torch.Generator().manual_seed(0))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.clone()}


def test_every_name_is_documented_and_there() -> None:
    for name in losses.__all__:
        assert getattr(losses, name).__doc__, name


def test_a_trainer_of_the_user_takes_the_loss_of_the_model(model: Any, tmp_path: Path) -> None:
    from transformers import Trainer, TrainingArguments

    class Own(Trainer):  # type: ignore[misc]  # transformers is untyped
        def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> Any:
            labels = inputs.pop("labels")
            hidden, head = losses.hidden_states(model, **inputs)
            assert hidden.shape[:2] == labels.shape
            total, count = losses.selected_cross_entropy(hidden, labels, head)
            return total / count

    args = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to="none")
    inputs = batch()
    expected = model(**inputs).loss
    found = Own(model=model, args=args).compute_loss(model, dict(inputs))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_pairs_of_completions_are_compared_by_their_log_probs(model: Any) -> None:
    inputs = batch()
    labels = inputs.pop("labels")
    labels[:, :3] = -100
    hidden, head = losses.hidden_states(model, **inputs)
    found = losses.completion_log_probs(hidden, labels, head)
    logits = model(**inputs).logits[:, :-1].float()
    every = F.log_softmax(logits, dim=-1).gather(2, labels[:, 1:].clamp_min(0).unsqueeze(2))
    totals = (every.squeeze(2) * (labels[:, 1:] != -100)).sum(dim=1)
    torch.testing.assert_close(found.total, totals, rtol=1e-5, atol=1e-5)
    sides, counts = found.total.split(1), found.tokens.split(1)
    settings = losses.PairLossSettings(beta=0.5)
    loss = losses.pair_losses(sides[0], sides[1], (counts[0], counts[1]), "cpo", settings)
    torch.testing.assert_close(loss, -F.logsigmoid(0.5 * (sides[0] - sides[1])))
