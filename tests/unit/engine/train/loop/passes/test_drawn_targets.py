"""Targets drawn from the model's own distribution."""

from __future__ import annotations

import torch
from torch import nn

from fttui.engine.losses.cross_entropy import IGNORED
from fttui.engine.train.loop.passes.drawn_targets import sampled_labels, uniform_of_rows

IDS = torch.tensor([[5, 6, 7, 8], [9, 10, 11, 12]])
LABELS = torch.tensor([[IGNORED, 6, 7, 8], [IGNORED, IGNORED, 11, 12]])


def padded(tensor: torch.Tensor, value: int) -> torch.Tensor:
    return nn.functional.pad(tensor, (0, 3), value=value)


def test_the_numbers_of_a_row_do_not_depend_on_padding_or_other_rows() -> None:
    found = uniform_of_rows(IDS, LABELS, 1, 2)
    assert found.shape == (5,)
    assert len(set(found.tolist())) == 5
    swapped = uniform_of_rows(padded(IDS, 0).flip(0), padded(LABELS, IGNORED).flip(0), 1, 2)
    assert torch.equal(torch.cat((swapped[2:], swapped[:2])), found)
    assert not torch.equal(uniform_of_rows(IDS, LABELS, 1, 3), found)


def test_tokens_are_drawn_as_often_as_they_are_probable() -> None:
    torch.manual_seed(0)
    head = nn.Linear(4, 6, bias=False).double()
    hidden = torch.randn(1, 1, 4, dtype=torch.float64).expand(1, 20_001, 4)
    labels = torch.zeros(1, 20_001, dtype=torch.int64)
    uniform = torch.rand(20_000, dtype=torch.float64)
    drawn = sampled_labels(hidden, labels, head, uniform)
    shares = torch.bincount(drawn[0, 1:], minlength=6) / 20_000
    torch.testing.assert_close(shares.double(), head(hidden[0, 0]).softmax(-1), atol=0.02, rtol=0)


def test_only_targets_are_replaced() -> None:
    head = nn.Linear(4, 30, bias=False)
    drawn = sampled_labels(torch.randn(2, 4, 4), LABELS, head, torch.rand(5))
    assert torch.equal(drawn == IGNORED, LABELS == IGNORED)
    assert drawn.max() < 30
    nothing = torch.full_like(LABELS, IGNORED)
    assert torch.equal(sampled_labels(torch.randn(2, 4, 4), nothing, head, torch.rand(0)), nothing)


def test_every_share_of_the_unit_interval_is_a_token() -> None:
    head = nn.Linear(4, 30, bias=False)
    uniform = torch.tensor([0.0, 1.0, 1 - 1e-12, 0.5, 0.5], dtype=torch.float64)
    drawn = sampled_labels(torch.randn(2, 4, 4), LABELS, head, uniform)
    assert 0 <= int(drawn[LABELS != IGNORED].min()) <= int(drawn.max()) < 30
