"""Groups with a rate of their own, and the schedules over them."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from transformers import Trainer, TrainingArguments, get_scheduler

from fttui.engine.config.schema import LrRatios, RunConfig, TrainConfig
from fttui.engine.config.step_plan import StepPlan
from fttui.engine.train.loop.optimizers import (
    OwnOptimizer,
    moments,
    one_cycle,
    parameter_groups,
    set_lr,
)
from fttui.engine.train.patches import on_one_device
from fttui.engine.train.trainers.arguments import trainer_arguments

STEPS = 100


class _Adapter(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        for name in ("lora_A", "lora_B", "norm", "frozen"):
            self.add_module(name, torch.nn.Linear(2, 2, bias=False))
        self.frozen.requires_grad_(False)


def groups(**ratios: float) -> list[dict[str, Any]]:
    recipe = TrainConfig(steps=1, lr=0.1, weight_decay=0.5, lr_ratios=LrRatios(**ratios))
    return parameter_groups(_Adapter(), recipe, {"lora_A.weight", "lora_B.weight"})


def test_b_matrices_have_a_rate_of_their_own() -> None:
    found = [(group["lr"], group["weight_decay"], len(group["params"])) for group in groups()]
    assert found == [(0.1, 0.5, 1), (0.1, 0.0, 1), (0.1, 0.5, 1)]
    rates = [group["lr"] for group in groups(lora_b=16)]
    assert rates == [0.1, 0.1, pytest.approx(1.6)]


def test_a_rate_set_while_training_keeps_the_ratios() -> None:
    optimizer = torch.optim.AdamW(groups(lora_b=16))
    set_lr(optimizer, 0.01)
    assert [g["lr"] for g in optimizer.param_groups] == pytest.approx([0.01, 0.01, 0.16])


def factors(schedule: str, **more: Any) -> list[float]:
    """The rate after each step, as a share, from the arguments the trainers get."""
    train = {"steps": STEPS, "schedule": schedule, "lr": 0.5, "warmup": 10, **more}
    config = msgspec.convert(
        {"model": {"id": "m"}, "data": {"train": "d"}, "train": train}, RunConfig
    )
    plan = StepPlan(STEPS, 1.0, 1.0, 10, 1)
    found = trainer_arguments(config, plan, torch.device("cpu"), Path("x"))
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.5)
    schedule_ = get_scheduler(
        found["lr_scheduler_type"], optimizer, 10, STEPS, found["lr_scheduler_kwargs"]
    )
    return [schedule_.lr_lambdas[0](step) for step in range(STEPS + 1)]


@pytest.mark.parametrize("schedule", ["linear", "cosine", "polynomial", "wsd"])
@pytest.mark.parametrize("floor", [0.0, 0.1])
def test_a_schedule_ends_at_its_floor(schedule: str, floor: float) -> None:
    found = factors(schedule, lr_floor=floor)
    assert (max(found), found[10]) == (1.0, 1.0)
    assert found[-1] == pytest.approx(floor, abs=1e-9)


def test_schedules_differ_in_shape() -> None:
    assert factors("linear")[55] == pytest.approx(0.5)
    assert factors("polynomial")[55] == pytest.approx(0.25)
    assert factors("wsd")[79] == 1.0
    restarts = factors("cosine_restarts", schedule_cycles=3)
    assert sum(b > a + 0.5 for a, b in itertools.pairwise(restarts[10:])) == 2


def test_one_cycle_goes_up_and_down() -> None:
    found = [one_cycle(step, steps=STEPS, warmup=30, floor=0.01) for step in range(STEPS + 1)]
    assert found[0] == pytest.approx(1 / 25)
    assert found[:31] == sorted(found[:31])
    assert found[30] == 1.0
    assert found[30:] == sorted(found[30:], reverse=True)
    assert found[-1] == pytest.approx(0.01)


def test_a_process_uses_one_device_of_those_it_sees(tmp_path: Path) -> None:
    arguments = TrainingArguments(str(tmp_path), use_cpu=True)
    assert str(arguments.device) == "cpu"
    arguments._n_gpu = 4
    assert on_one_device(arguments).n_gpu == 1


def test_betas_and_epsilon_reach_the_optimizer() -> None:
    class Made(OwnOptimizer):
        recipe = TrainConfig(steps=1, betas=(0.8, 0.95), epsilon=1e-6)
        args = TrainingArguments(use_cpu=True)
        optimizer: Any = None
        model = _Adapter()
        get_optimizer_cls_and_kwargs = staticmethod(Trainer.get_optimizer_cls_and_kwargs)

        def get_decay_parameter_names(self, model: Any) -> list[str]:
            return []

    (group, *_) = Made().create_optimizer().param_groups
    assert (group["betas"], group["eps"]) == ((0.8, 0.95), 1e-6)
    assert moments(TrainConfig(steps=1)) == {}
