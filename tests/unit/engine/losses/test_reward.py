"""The loss of reward models against closed forms and against TRL's trainer."""

from __future__ import annotations

import math
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from fttui.engine.losses.reward import last_token_states, reward_losses, scores_of

ONE, OTHER = torch.tensor([1.5, -0.5, 3.0]), torch.tensor([0.5, 0.5, -2.0])
MARGINS = torch.tensor([0.0, 0.7, 1.0])


def test_closed_forms() -> None:
    plain = reward_losses(ONE, OTHER)
    assert plain.tolist() == pytest.approx([math.log1p(math.exp(-d)) for d in (1.0, -1.0, 5.0)])
    apart = reward_losses(ONE, OTHER, MARGINS)
    assert apart.tolist() == pytest.approx([math.log1p(math.exp(-d)) for d in (1.0, -1.7, 4.0)])
    centred = reward_losses(ONE, OTHER, centering=0.1) - plain
    assert centred.tolist() == pytest.approx([0.4, 0.0, 0.1])


class _Scorer(torch.nn.Module):
    """Gives TRL's trainer the scores in its inputs."""

    def forward(self, scores: Tensor, **_: Any) -> Any:
        return SimpleNamespace(logits=scores)


@pytest.mark.parametrize("margins", [None, MARGINS])
@pytest.mark.parametrize("centering", [None, 0.05])
def test_pairs_cost_what_they_cost_in_trl(margins: Tensor | None, centering: float | None) -> None:
    from trl import RewardTrainer

    trainer: Any = RewardTrainer.__new__(RewardTrainer)
    trainer.model = torch.nn.Linear(1, 1)
    trainer.args = SimpleNamespace(center_rewards_coefficient=centering)
    trainer.accelerator = SimpleNamespace(gather_for_metrics=lambda x: x, gather=lambda x: x)
    trainer._metrics = {"train": defaultdict(list), "eval": defaultdict(list)}
    trainer._total_train_tokens, trainer._tp_size = 0, 1
    inputs = {"scores": torch.cat((ONE, OTHER)).unsqueeze(1), "attention_mask": torch.ones(6, 2)}
    if margins is not None:
        inputs["margin"] = margins
    expected = trainer.compute_loss(_Scorer(), inputs)
    found = reward_losses(ONE, OTHER, margins, centering or 0.0).mean()
    assert float(found) == pytest.approx(float(expected), rel=1e-5)


def test_scores_are_those_of_a_sequence_classifier(tmp_path: Path) -> None:
    from transformers import LlamaConfig, LlamaForSequenceClassification

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2, num_labels=1, pad_token_id=0,
    )  # fmt: skip
    model = LlamaForSequenceClassification(config).eval()
    ids = torch.tensor([[5, 6, 7, 0], [5, 6, 7, 8], [9, 0, 3, 0], [4, 0, 0, 0]])
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 0], [1, 0, 0, 0]])
    with torch.no_grad():
        expected = model(input_ids=ids, attention_mask=mask).logits.squeeze(-1)
        hidden = model.model(input_ids=ids, attention_mask=mask).last_hidden_state
        found = scores_of(last_token_states(hidden, ids, 0), model.score.weight)
    torch.testing.assert_close(found, expected)
