"""Gradient flow: norms of gradients, changes and weights by module, and the verdict on them."""

from __future__ import annotations

import math

import pytest
import torch

from fttui.engine.core.anomaly.progress import DEAD_SHARE
from fttui.engine.protocol.event_parts import ModuleFlow
from fttui.engine.train.monitoring.gradient_flow import EXPLODING, GradientFlow, judge


def _flow(**norms: float) -> list[ModuleFlow]:
    return [
        ModuleFlow(module=name, grad_norm=norm, update_norm=0.0, weight_norm=1.0)
        for name, norm in norms.items()
    ]


def test_an_update_is_the_change_of_the_weights() -> None:
    model = torch.nn.Linear(1, 2, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0], [1.0]]))
    flow = GradientFlow(model)
    model.weight.grad = torch.tensor([[0.3], [0.4]])
    flow.before("asked", scale=0.5)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[4.0], [5.0]]))
    (module,) = flow.after().modules
    assert module.grad_norm == pytest.approx(1.0)
    assert module.update_norm == pytest.approx(5.0)
    assert module.weight_norm == pytest.approx(math.hypot(4.0, 5.0))
    assert not flow.measuring


def test_modules_far_below_and_above_the_median_are_named() -> None:
    norms = {"low": DEAD_SHARE, "a": 1.0, "b": 1.0, "c": 1.0, "high": EXPLODING * 1.01}
    assert judge(_flow(**norms)) == (["low"], ["high"])
    assert judge(_flow(**{**norms, "low": DEAD_SHARE * 1.01, "high": EXPLODING})) == ([], [])


def test_without_any_gradient_all_modules_are_dead_and_none_explodes() -> None:
    assert judge(_flow(a=0.0, b=0.0)) == (["a", "b"], [])


def test_a_single_positive_norm_above_zeros_does_not_explode() -> None:
    """The median is 0, of which no multiple is a limit."""
    assert judge(_flow(a=0.0, b=0.0, c=1.0)) == (["a", "b"], [])


def test_a_norm_that_is_not_finite_explodes_and_leaves_the_median_alone() -> None:
    assert judge(_flow(a=1.0, b=1.0, c=math.inf)) == ([], ["c"])
    assert judge(_flow(a=math.nan)) == ([], ["a"])
