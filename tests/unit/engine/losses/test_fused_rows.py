"""Fused chunks give the losses and gradients of full logits, and hold 2 bytes per logit."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fttui.engine.losses import cross_entropy
from fttui.engine.losses.cross_entropy import static_cross_entropy, static_log_probs
from fttui.engine.losses.fused_rows import RowKernels, gradient_in_place, is_plain, row_losses

VOCABULARY, WIDTH = 300, 16


def head(dtype: torch.dtype = torch.float64, *, bias: bool = False) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(WIDTH, VOCABULARY, bias=bias, dtype=dtype).requires_grad_(False)


def batch(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    labels = torch.randint(0, VOCABULARY, (3, 100))
    labels[0, :60] = labels[2, 80:] = -100
    return torch.randn(3, 100, WIDTH, dtype=dtype, requires_grad=True), labels


def both(function: Any, hidden: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """The result and the gradient by autograd and with fused rows."""
    found = []
    for rows in (None, RowKernels()):
        result = function(hidden, rows=rows)
        found.append([result.detach(), *torch.autograd.grad((result * result).sum(), hidden)])
    return found[0], found[1]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("form", [{}, {"smoothing": 0.1}, {"focal": 2.0}])
def test_the_loss_of_fused_rows_is_that_of_autograd(form: dict[str, Any], bias: bool) -> None:
    hidden, labels = batch()
    function = partial(static_cross_entropy, labels=labels, lm_head=head(bias=bias), **form)
    for right, got in zip(*both(function, hidden), strict=True):
        torch.testing.assert_close(got, right, atol=1e-10, rtol=1e-10)


def test_log_probabilities_of_fused_rows_are_those_of_autograd() -> None:
    hidden, labels = batch()

    def sums(states: Tensor, rows: RowKernels | None) -> Tensor:
        return static_log_probs(states, labels, head(), rows=rows)[0]

    for right, got in zip(*both(sums, hidden), strict=True):
        torch.testing.assert_close(got, right, atol=1e-10, rtol=1e-10)


def test_chunks_of_half_precision_logits_agree_to_their_rounding(monkeypatch: Any) -> None:
    monkeypatch.setattr(cross_entropy, "fused_chunk_tokens_for", lambda vocabulary: 128)
    hidden, labels = batch(torch.bfloat16)
    function = partial(static_cross_entropy, labels=labels, lm_head=head(torch.bfloat16))
    right, got = both(function, hidden)
    torch.testing.assert_close(got[0], right[0], atol=0, rtol=1e-5)
    torch.testing.assert_close(got[1], right[1], atol=0.02 * float(right[1].abs().max()), rtol=0)


def test_without_a_gradient_the_loss_is_the_same_and_logits_are_not_overwritten() -> None:
    hidden, labels = batch()
    written: list[Tensor] = []
    rows = RowKernels(gradient=lambda *arguments: written.append(arguments[0]))
    with torch.no_grad():
        found = static_cross_entropy(hidden.detach(), labels, head(), rows=rows)
    torch.testing.assert_close(found, static_cross_entropy(hidden, labels, head()).detach())
    assert not written


def test_a_row_without_a_label_does_not_count_even_if_it_is_not_finite() -> None:
    hidden, labels = batch()
    states = hidden.detach().clone()
    states[0, 10] = torch.nan
    found = static_cross_entropy(states.requires_grad_(), labels, head(), rows=RowKernels())
    assert found.isfinite()


def test_a_row_with_a_label_that_is_not_finite_is_not_averaged_away() -> None:
    hidden, labels = batch()
    states = hidden.detach().clone()
    states[1, 10] = torch.nan
    found = static_cross_entropy(states.requires_grad_(), labels, head(), rows=RowKernels())
    assert found.isnan()


def test_the_gradient_takes_the_place_of_the_logits() -> None:
    logits = torch.randn(4, VOCABULARY, dtype=torch.bfloat16)
    targets, place = torch.tensor([0, 1, 2, 299]), logits.data_ptr()
    losses, log_sums = row_losses(logits, targets, 0.0)
    gradient_in_place(logits, targets, log_sums, torch.ones_like(losses), 0.0)
    assert logits.data_ptr() == place
    assert logits.float().sum(1).abs().max() < 0.05


@pytest.mark.parametrize("change", ["trained", "capped", "replaced"])
def test_only_a_frozen_linear_layer_has_fused_rows(change: str) -> None:
    one: nn.Module = head()
    assert is_plain(one)
    if change == "trained":
        one.requires_grad_(True)
    elif change == "capped":
        one = nn.Sequential(one, nn.Tanh())
    else:
        vars(one)["forward"] = one.forward
    assert not is_plain(one)
