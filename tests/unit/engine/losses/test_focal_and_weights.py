"""The focal factor and the weights of tokens, with every kind of head and way of computing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fttui.engine.losses.cross_entropy import selected_cross_entropy, static_cross_entropy

B, T, H, V = 3, 7, 6, 11


def case(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states with a gradient, labels of which some are ignored, and weights."""
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(B, T, H, generator=generator, dtype=torch.float64).requires_grad_()
    labels = torch.randint(V, (B, T), generator=generator)
    labels[torch.rand(B, T, generator=generator) < 0.3] = -100
    return hidden, labels, torch.rand(B, T, generator=generator, dtype=torch.float64)


def head(*, trained: bool) -> nn.Linear:
    torch.manual_seed(1)
    return nn.Linear(H, V, dtype=torch.float64).requires_grad_(trained)


def expected(hidden: Tensor, labels: Tensor, lm_head: nn.Module, focal: float, weights: Any) -> Any:
    log_probs = F.log_softmax(lm_head(hidden[:, :-1]), dim=-1)
    targets = labels[:, 1:]
    chosen = log_probs.gather(2, targets.clamp_min(0).unsqueeze(2)).squeeze(2)
    losses = (1 - chosen.exp()) ** focal * -chosen * (targets != -100)
    return (losses * (1.0 if weights is None else weights.expand(B, T)[:, 1:])).sum()


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("focal", [0.0, 0.5, 2.0])
@pytest.mark.parametrize("weighted", ["none", "tokens", "records"])
def test_every_token_counts_by_its_probability_and_its_weight(
    trained: bool, focal: float, weighted: str
) -> None:
    hidden, labels, weights = case()
    lm_head = head(trained=trained)
    given = {"none": None, "tokens": weights, "records": weights[:, :1]}[weighted]
    wanted = expected(hidden, labels, lm_head, focal, given)
    found, count = selected_cross_entropy(
        hidden, labels, lm_head, chunk_tokens=4, focal=focal, weights=given
    )
    assert count == (labels[:, 1:] != -100).sum()
    torch.testing.assert_close(found, wanted)
    inputs = [hidden, *(lm_head.parameters() if trained else ())]
    for mine, theirs in zip(
        torch.autograd.grad(found, inputs), torch.autograd.grad(wanted, inputs), strict=True
    ):
        torch.testing.assert_close(mine, theirs)
    if given is None:
        static = static_cross_entropy(hidden, labels, lm_head, focal=focal)
        torch.testing.assert_close(static, wanted)


def test_a_certain_token_has_no_loss_and_a_finite_gradient() -> None:
    lm_head = head(trained=False)
    hidden = (lm_head.weight[3] * 1e4).expand(1, 2, H).clone().requires_grad_()
    loss, _ = selected_cross_entropy(hidden, torch.tensor([[0, 3]]), lm_head, focal=0.5)
    loss.backward()
    assert loss.item() == pytest.approx(0.0, abs=1e-6)
    assert hidden.grad is not None
    assert torch.isfinite(hidden.grad).all()
