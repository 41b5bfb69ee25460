from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fttui.engine.config.memory.limits import LOGITS_AT_ONCE, chunk_tokens_for
from fttui.engine.losses.cross_entropy import selected_cross_entropy as loss_of

VOCABULARY = 11


class WatchedHead(nn.Linear):
    """A head that notes how many rows it was asked for at a time."""

    def __init__(self, *, trainable: bool) -> None:
        super().__init__(6, VOCABULARY, bias=False, dtype=torch.float64)
        nn.init.normal_(self.weight, generator=torch.Generator().manual_seed(0))
        self.weight.requires_grad_(trainable)
        self.rows: list[int] = []

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        self.rows.append(hidden.shape[0])
        return super().forward(hidden)


@pytest.fixture
def hidden() -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(3, 7, 6, generator=generator, dtype=torch.float64).requires_grad_()


@pytest.fixture
def labels() -> torch.Tensor:
    labels = torch.randint(0, VOCABULARY, (3, 7), generator=torch.Generator().manual_seed(2))
    labels[0, :4] = -100
    labels[1, 5:] = -100
    return labels


def plain(hidden: torch.Tensor, labels: torch.Tensor, head: nn.Linear) -> torch.Tensor:
    logits = F.linear(hidden, head.weight)[:, :-1].reshape(-1, VOCABULARY)
    return F.cross_entropy(logits, labels[:, 1:].reshape(-1), reduction="sum", ignore_index=-100)


@pytest.mark.parametrize("trainable", [False, True])
@pytest.mark.parametrize("chunk", [1, 4, 100])
def test_loss_and_gradients_are_those_of_full_logits(hidden, labels, trainable, chunk) -> None:
    head = WatchedHead(trainable=trainable)
    wanted = [hidden, head.weight] if trainable else [hidden]
    expected = plain(hidden, labels, head)
    expected_gradients = torch.autograd.grad(expected, wanted)

    loss, count = loss_of(hidden, labels, head, chunk)
    gradients = torch.autograd.grad(loss * 0.5, wanted)

    assert count == int((labels[:, 1:] != -100).sum())
    torch.testing.assert_close(loss, expected, atol=1e-12, rtol=0)
    for got, full in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(got, full * 0.5, atol=1e-12, rtol=0)


@pytest.mark.parametrize("trainable", [False, True])
def test_the_head_sees_labelled_positions_only_and_a_chunk_at_a_time(
    hidden, labels, trainable
) -> None:
    head = WatchedHead(trainable=trainable)
    loss, count = loss_of(hidden, labels, head, 4)
    forward_rows = list(head.rows)
    loss.backward()
    assert sum(forward_rows) == count
    assert max(head.rows) == 4
    assert (head.rows == forward_rows) is not trainable, "a frozen head runs once"


def test_evaluation_needs_no_gradient(hidden, labels) -> None:
    head = WatchedHead(trainable=False)
    with torch.no_grad():
        loss, _ = loss_of(hidden, labels, head)
    assert not loss.requires_grad
    torch.testing.assert_close(loss, plain(hidden, labels, head).detach(), atol=1e-12, rtol=0)


def test_without_labels_the_loss_is_zero_and_still_has_a_graph(hidden) -> None:
    labels = torch.full((3, 7), -100)
    labels[:, 0] = 1  # a first token is predicted by nothing
    loss, count = loss_of(hidden, labels, WatchedHead(trainable=False))
    loss.backward()
    assert (loss.item(), count.item()) == (0.0, 0)
    assert hidden.grad is not None
    assert hidden.grad.abs().max().item() == 0.0


def test_half_precision_logits_are_summed_in_fp32(labels) -> None:
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(3, 7, 6, generator=generator).to(torch.bfloat16).requires_grad_()
    head = nn.Linear(6, VOCABULARY, bias=False).to(torch.bfloat16).requires_grad_(False)
    loss, _ = loss_of(hidden, labels, head)
    loss.backward()
    logits = head(hidden.detach()).float()[:, :-1].reshape(-1, VOCABULARY)
    expected = F.cross_entropy(logits, labels[:, 1:].reshape(-1), reduction="sum")
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    assert hidden.grad is not None
    assert hidden.grad.dtype == torch.bfloat16


def test_a_non_finite_state_is_not_averaged_away(hidden, labels) -> None:
    poisoned = hidden.detach().clone()
    poisoned[2, 3, 0] = torch.nan
    loss, _ = loss_of(poisoned.requires_grad_(), labels, WatchedHead(trainable=False), 4)
    assert torch.isnan(loss)


def test_a_chunk_of_logits_stays_within_its_bound() -> None:
    for vocabulary in (260, 49_152, 151_936):
        assert chunk_tokens_for(vocabulary) * vocabulary <= LOGITS_AT_ONCE
