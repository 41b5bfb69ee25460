"""Clipping by value and by the norms of weights, beside the clipping by the norm."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from fttui.engine.config.schema import TrainConfig
from fttui.engine.train.loop.clipping import clip_adaptively, clip_gradients


def weight(values: list[list[float]], gradient: list[list[float]]) -> nn.Parameter:
    made = nn.Parameter(torch.tensor(values, dtype=torch.float32))
    made.grad = torch.tensor(gradient, dtype=torch.float32)
    return made


def clipped(parameter: nn.Parameter, limit: float, **recipe: float) -> tuple[float, Tensor]:
    """The norm that is reported, and the gradient after it."""

    def clip_norm(largest: float) -> Tensor:
        return nn.utils.clip_grad_norm_([parameter], largest)

    norm = clip_gradients([parameter], TrainConfig(**recipe), limit, clip_norm)  # type: ignore[arg-type]
    assert parameter.grad is not None
    return float(norm), parameter.grad


def test_values_are_limited_before_the_norm() -> None:
    norm, found = clipped(weight([[1, 1]], [[3, -4]]), math.inf, clip_value=2)
    assert (norm, found.tolist()) == (5.0, [[2.0, -2.0]])
    norm, found = clipped(weight([[1, 1]], [[3, -4]]), 1.0, clip_value=2)
    assert norm == 5.0
    assert found.tolist()[0] == pytest.approx([2**-0.5, -(2**-0.5)], abs=1e-6)


def test_rows_are_limited_by_the_norms_of_their_weights() -> None:
    one = weight([[3, 4], [0, 0], [30, 40]], [[6, 8], [6, 8], [0.3, 0.4]])
    clip_adaptively([one], 0.1)
    assert one.grad is not None
    assert one.grad.tolist()[0] == pytest.approx([0.3, 0.4])
    assert one.grad.tolist()[1] == pytest.approx([6e-5, 8e-5])
    assert one.grad.tolist()[2] == pytest.approx([0.3, 0.4])


@pytest.mark.parametrize("bad", [math.inf, math.nan])
@pytest.mark.parametrize("kind", ["clip_value", "clip_adaptive"])
def test_the_guard_still_learns_of_values_that_are_not_finite(bad: float, kind: str) -> None:
    norm, _ = clipped(weight([[1, 1]], [[bad, 1]]), 1.0, **{kind: 0.5})
    assert not math.isfinite(norm)


def test_vectors_and_numbers_count_as_a_whole() -> None:
    scalar = nn.Parameter(torch.tensor(2.0))
    scalar.grad = torch.tensor(-9.0)
    clip_adaptively([scalar], 0.5)
    assert float(scalar.grad) == pytest.approx(-1.0)
