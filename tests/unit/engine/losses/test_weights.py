"""Weighted sums of losses, and the next-token loss with weights against plain PyTorch."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fttui.engine.losses.cross_entropy import selected_cross_entropy
from fttui.engine.losses.weights import drop_weights, total_weight, weighted_sum, weights_of
from fttui.engine.train.objectives.mean import mean_over_step


def test_a_sum_without_weights_is_the_plain_one() -> None:
    losses = torch.tensor([1.0, 2.0, 4.0])
    assert weighted_sum(losses, None) == 7
    assert weighted_sum(losses, torch.tensor([0.0, 0.5, 2.0])) == 9
    batch = {"record_weights": torch.tensor([0.5, 2.0])}
    assert weights_of(batch, 2) == [0.5, 2.0]
    assert weights_of({}, 2) == [1.0, 1.0]
    assert total_weight([(batch, 2), ({}, 3)]) == 5.5
    drop_weights(batch)
    assert batch == {}


@pytest.mark.parametrize("items", [0.5, 1e-3, 40.0])
def test_the_mean_divides_by_weights_below_one(items: float) -> None:
    found = mean_over_step(torch.tensor(3.0), torch.tensor(items), 2)
    assert found.item() == pytest.approx(3.0 / items * 2)
    assert mean_over_step(torch.tensor(0.0), torch.tensor(0.0), 2) == 0


@pytest.mark.parametrize("focal", [0.0, 2.0])
def test_token_weights_scale_value_and_gradient(focal: float) -> None:
    torch.manual_seed(0)
    head = nn.Linear(8, 11, bias=False).double().requires_grad_(False)
    hidden = torch.randn(2, 5, 8, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(0, 11, (2, 5))
    labels[0, :2] = -100
    weights = torch.rand(2, 5, dtype=torch.float64) * 3
    found, _ = selected_cross_entropy(hidden, labels, head, focal=focal, weights=weights)
    (gradient,) = torch.autograd.grad(found, hidden)
    logits = head(hidden[:, :-1]).flatten(0, 1)
    targets = labels[:, 1:].flatten()
    each = F.cross_entropy(logits, targets, reduction="none", ignore_index=-100)
    each = (1 - torch.exp(-each)) ** focal * each
    expected = (each * weights[:, 1:].flatten()).sum()
    (wanted,) = torch.autograd.grad(expected, hidden)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(gradient, wanted)
