"""The loss under a head that exists one slice at a time is the loss under the whole head."""

from __future__ import annotations

import weakref
from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fttui.engine.losses import sliced
from fttui.engine.losses.cross_entropy import selected_cross_entropy, token_log_probs
from fttui.engine.losses.sliced import HeadSlice, sliced_logits
from fttui.engine.model.hidden import ShapedHead

VOCABULARY, HIDDEN = 11, 6


class Slices(nn.Module):
    """A matrix in three uneven slices; counts how many are alive."""

    def __init__(self, dtype: torch.dtype, *, bias: bool) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.weight = torch.randn(VOCABULARY, HIDDEN, generator=generator, dtype=dtype)
        self.bias = torch.randn(VOCABULARY, generator=generator, dtype=dtype) if bias else None

    def slices(self) -> Iterator[HeadSlice]:
        for start, stop in ((0, 4), (4, 8), (8, VOCABULARY)):
            bias = None if self.bias is None else self.bias[start:stop]
            yield HeadSlice(self.weight[start:stop], bias)


def drawn(dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(3, 7, HIDDEN, generator=generator, dtype=torch.float64).to(dtype)
    labels = torch.randint(0, VOCABULARY, (3, 7), generator=generator)
    labels[0, :4] = -100
    labels[1, 5:] = -100
    return hidden.requires_grad_(), labels


def whole(hidden: torch.Tensor, labels: torch.Tensor, head: Slices, shape) -> torch.Tensor:
    scale, cap = shape
    logits = F.linear(hidden, head.weight, head.bias)[:, :-1] * scale
    if cap is not None:
        logits = cap * torch.tanh(logits / cap)
    nll = F.cross_entropy(
        logits.reshape(-1, VOCABULARY), labels[:, 1:].reshape(-1), reduction="none"
    )
    return -nll.view(labels[:, 1:].shape)


@pytest.mark.parametrize("rows_at_once", [1, 2, 1000])
@pytest.mark.parametrize("shape", [(1.0, None), (0.5, None), (2.0, 1.5)])
@pytest.mark.parametrize("bias", [False, True])
def test_values_and_gradients_are_those_of_the_whole_head(
    monkeypatch, rows_at_once, shape, bias
) -> None:
    monkeypatch.setattr(sliced, "SLICE_LOGITS", rows_at_once * 4)
    hidden, labels = drawn()
    head = Slices(torch.float64, bias=bias)
    weights = torch.randn(3, 6, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    expected = whole(hidden, labels, head, shape)
    (wanted,) = torch.autograd.grad((expected * weights).sum(), hidden)

    got, mask = token_log_probs(hidden, labels, ShapedHead(head, *shape))
    (gradient,) = torch.autograd.grad((got * weights).sum(), hidden)

    assert torch.equal(mask, labels[:, 1:] != -100)
    torch.testing.assert_close(got, expected, atol=1e-12, rtol=0)
    torch.testing.assert_close(gradient, wanted, atol=1e-12, rtol=0)


def test_the_sum_over_a_sliced_head_is_the_loss() -> None:
    hidden, labels = drawn()
    head = Slices(torch.float64, bias=False)
    loss, count = selected_cross_entropy(hidden, labels, head)
    torch.testing.assert_close(loss, -whole(hidden, labels, head, (1.0, None)).sum())
    assert count == int((labels[:, 1:] != -100).sum())


def test_log_probs_of_an_unsliced_head_agree_and_are_chunked() -> None:
    hidden, labels = drawn()
    slices = Slices(torch.float64, bias=True)
    linear = nn.Linear(HIDDEN, VOCABULARY, dtype=torch.float64)
    linear.load_state_dict({"weight": slices.weight, "bias": slices.bias})
    expected, _ = token_log_probs(hidden, labels, slices)
    got, _ = token_log_probs(hidden, labels, linear.requires_grad_(False), chunk_tokens=2)
    torch.testing.assert_close(got, expected, atol=1e-12, rtol=0)
    by_both = [torch.autograd.grad((x**2).sum(), hidden)[0] for x in (got, expected)]
    torch.testing.assert_close(*by_both, atol=1e-12, rtol=0)


def test_without_any_label_there_is_still_a_graph() -> None:
    hidden, labels = drawn()
    for head in (Slices(torch.float64, bias=False), nn.Linear(HIDDEN, 3, dtype=torch.float64)):
        got, mask = token_log_probs(hidden, torch.full_like(labels, -100), head)
        (gradient,) = torch.autograd.grad(got.sum(), hidden)
        assert not mask.any()
        assert gradient.abs().max() == 0


def test_half_precision_is_summed_in_fp32() -> None:
    hidden, labels = drawn(torch.bfloat16)
    head = Slices(torch.bfloat16, bias=False)
    got, _ = token_log_probs(hidden, labels, head)
    got.sum().backward()
    wide = Slices(torch.float64, bias=False)
    wide.weight = head.weight.double()
    expected = whole(hidden.detach().double(), labels, wide, (1.0, None))
    assert got.dtype == torch.float32
    assert hidden.grad is not None
    assert hidden.grad.dtype == torch.bfloat16
    torch.testing.assert_close(got.double(), expected, atol=0.1, rtol=0.02)


def test_a_non_finite_state_is_not_averaged_away() -> None:
    hidden, labels = drawn()
    poisoned = hidden.detach().clone()
    poisoned[2, 3, 0] = torch.nan
    loss, _ = selected_cross_entropy(poisoned, labels, Slices(torch.float64, bias=False))
    assert torch.isnan(loss)


def test_logits_and_their_gradients_need_no_part_of_the_matrix_in_the_graph() -> None:
    hidden, _ = drawn()
    head = Slices(torch.float64, bias=True)
    kept: list[torch.Tensor] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        got = sliced_logits(hidden, head)
    exact = F.linear(hidden, head.weight, head.bias)
    torch.testing.assert_close(got, exact, atol=1e-12, rtol=0)
    by_both = [torch.autograd.grad((x**2).sum(), hidden)[0] for x in (got, exact)]
    torch.testing.assert_close(*by_both, atol=1e-12, rtol=0)
    assert kept == []


def test_no_slice_is_alive_when_the_next_is_made() -> None:
    class Counted(Slices):
        def slices(self) -> Iterator[HeadSlice]:
            before: weakref.ref[HeadSlice] | None = None
            for number in range(3):
                assert before is None or before() is None
                part = HeadSlice(self.weight[4 * number : 4 * number + 4].clone())
                before = weakref.ref(part)
                yield part
                del part

    hidden, labels = drawn()
    head = Counted(torch.float64, bias=False)
    selected_cross_entropy(hidden, labels, head)[0].backward()
    sliced_logits(hidden, head).sum().backward()
