from __future__ import annotations

import pytest
import torch

from fttui.engine.losses.pooling import Pooling, pool

from . import oracle

HOW: tuple[Pooling, ...] = ("mean", "last", "weighted_mean")


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize(
    "mask", [[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [0, 0, 1, 1, 1], [0, 1, 0, 1, 0], [0, 0, 0, 0, 1]]
)
def test_agrees_with_the_oracle(how: Pooling, mask: list[int]) -> None:
    hidden = random(1, 5, 3)
    got = pool(hidden, torch.tensor([mask]), how)[0].tolist()
    assert got == pytest.approx(oracle.pool(hidden[0].tolist(), mask, how), abs=1e-13)


@pytest.mark.parametrize("how", HOW)
def test_a_row_does_not_depend_on_side_or_amount_of_padding(how: Pooling) -> None:
    tokens = random(1, 3, 4)
    alone = pool(tokens, torch.ones(1, 3), how)
    for left, right in ((0, 5), (5, 0), (2, 3)):
        hidden = torch.cat((random(1, left, 4, seed=1), tokens, random(1, right, 4, seed=2)), 1)
        mask = torch.tensor([[0] * left + [1] * 3 + [0] * right])
        torch.testing.assert_close(pool(hidden, mask, how), alone, atol=1e-14, rtol=0)


@pytest.mark.parametrize("how", HOW)
def test_a_row_without_tokens_gives_zeros_and_no_gradient(how: Pooling) -> None:
    hidden = random(2, 3, 4).requires_grad_()
    pooled = pool(hidden, torch.tensor([[0, 0, 0], [1, 1, 1]]), how)
    pooled.sum().backward()
    assert pooled[0].abs().max().item() == 0.0
    assert hidden.grad is not None
    assert hidden.grad[0].abs().max().item() == 0.0
    assert hidden.grad[1].abs().max().item() > 0.0


@pytest.mark.parametrize("how", HOW)
def test_half_precision_states_are_pooled_in_fp32(how: Pooling) -> None:
    hidden = (1 + random(1, 512, 2) / 100).to(torch.bfloat16)
    pooled = pool(hidden, torch.ones(1, 512, dtype=torch.int64), how)
    exact = pool(hidden.double(), torch.ones(1, 512, dtype=torch.int64), how)
    assert pooled.dtype == torch.float32
    torch.testing.assert_close(pooled.double(), exact, atol=1e-6, rtol=0)
