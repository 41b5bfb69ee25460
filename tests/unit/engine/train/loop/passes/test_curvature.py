"""The estimate of the curvature: when it is made, and what becomes of one that is not finite."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fttui.engine.config.schema import TrainConfig
from fttui.engine.train.loop.optimizer_kinds import SophiaG, build_own
from fttui.engine.train.loop.passes.curvature import CurvaturePass
from fttui.engine.train.loop.step_metrics import StepMetrics


class Double:
    """A trainer of one weight, whose drawn targets give a gradient of `slope`."""

    def __init__(self, slope: float) -> None:
        self.weight = torch.ones(3, requires_grad=True)
        groups = [{"params": [self.weight]}]
        self.optimizer = build_own("sophia", groups, TrainConfig(optimizer="sophia", lr=0.1))
        self.step_loop: Any = SimpleNamespace(
            dropped=False,
            tally=StepMetrics(),
            may_continue=lambda: True,
            unmeasured=nullcontext,
        )
        self.position = SimpleNamespace(step=0)
        self.accelerator: Any = SimpleNamespace(
            no_sync=lambda model: nullcontext(), backward=lambda loss: loss.backward()
        )
        self.scaler, self.no_items = None, False
        self.slope, self.passes = slope, 0

    def _prepare_inputs(self, batch: Any) -> Any:
        return batch

    def compute_loss_context_manager(self) -> Any:
        return nullcontext()

    def sampled_loss(self, model: Any, inputs: Any, uniform: Any, items: Any) -> torch.Tensor:
        self.passes += 1
        assert len(uniform) == 2
        return (self.weight * self.slope).sum()


BATCH = {"input_ids": torch.tensor([[1, 2, 3]]), "labels": torch.tensor([[-100, 2, 3]])}


def run(double: Double, step: int, every: int = 2) -> None:
    double.position.step = step
    double.weight.grad = torch.full((3,), 0.25)
    one = CurvaturePass(double, every=every, seed=0)
    one.begin([BATCH, BATCH], 4)
    one.run(None)


def test_an_estimate_enters_with_the_update_and_leaves_the_gradient_alone() -> None:
    double = Double(slope=0.5)
    run(double, step=2)
    assert double.weight.grad is not None
    assert double.weight.grad.tolist() == [0.25] * 3
    double.optimizer.step()
    (state,) = double.optimizer.state.values()
    # Two micro-batches give the gradient 1; 4 targets, and one hundredth of the estimate enters.
    assert state["curvature"].tolist() == pytest.approx([0.01 * 4 * 1.0**2] * 3)


@pytest.mark.parametrize(("step", "dropped", "without"), [(3, 0, 0), (2, 1, 0), (2, 0, 1)])
def test_no_pass_is_made_where_none_is_due(step: int, dropped: int, without: int) -> None:
    double = Double(slope=0.5)
    double.step_loop.dropped, double.no_items = bool(dropped), bool(without)
    run(double, step)
    assert double.passes == 0


def test_an_estimate_of_a_refused_update_is_dropped() -> None:
    double = Double(slope=0.5)
    run(double, step=2)
    run(double, step=3)
    double.optimizer.step()
    (state,) = double.optimizer.state.values()
    assert state["curvature"].tolist() == [0.0] * 3


def test_an_estimate_that_is_not_finite_makes_the_gradient_nan() -> None:
    double = Double(slope=float("inf"))
    run(double, step=2)
    assert double.weight.grad is not None
    assert double.weight.grad.isnan().all()


def test_a_step_whose_estimate_is_interrupted_has_none() -> None:
    double = Double(slope=0.5)

    def interrupted() -> bool:
        double.step_loop.dropped = True
        return False

    double.step_loop.may_continue = interrupted
    run(double, step=2)
    assert isinstance(double.optimizer, SophiaG)
    assert double.passes == 0
    double.optimizer.step()
    (state,) = double.optimizer.state.values()
    assert state["curvature"].tolist() == [0.0] * 3


def test_an_update_is_bounded_by_the_learning_rate() -> None:
    double = Double(slope=0.5)
    double.weight.grad = torch.tensor([0.25, -3.0, 0.0])
    before = double.weight.detach().clone()
    double.optimizer.step()
    assert (double.weight - before).tolist() == pytest.approx([-0.1, 0.1, 0.0])
