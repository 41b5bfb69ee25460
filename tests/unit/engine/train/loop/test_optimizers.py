"""Groups with a rate of their own, and the schedules over them."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec
import pytest
import torch
from transformers import Trainer, TrainingArguments, get_scheduler

from fttui.engine.config.schema import LrRatios, RunConfig, TrainConfig
from fttui.engine.config.sections.optimizers import OPTIMIZERS
from fttui.engine.config.sections.train import SamConfig
from fttui.engine.config.step_plan import StepPlan
from fttui.engine.core.schedules import one_cycle, own_factor
from fttui.engine.errors import ConfigError
from fttui.engine.train.loop.optimizer_kinds import OWN, LookaheadAdamW, build_own, moments
from fttui.engine.train.loop.optimizers import (
    OwnOptimizer,
    parameter_groups,
    set_lr,
)
from fttui.engine.train.patches import on_one_device
from fttui.engine.train.trainers.arguments import _OPTIMIZERS as OPTIMIZER_NAMES_OF_TRANSFORMERS
from fttui.engine.train.trainers.arguments import trainer_arguments

STEPS = 100


class _Adapter(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        for name in ("lora_A", "lora_B", "norm", "frozen"):
            self.add_module(name, torch.nn.Linear(2, 2, bias=False))
        self.frozen.requires_grad_(False)


def groups(**ratios: Any) -> list[dict[str, Any]]:
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


def own(schedule: str, **more: Any) -> list[float]:
    """The rate after each step, as a share, of a schedule that transformers lacks."""
    factor = own_factor(TrainConfig(schedule=schedule, **more), STEPS, 10)  # type: ignore[arg-type]
    assert factor is not None
    return [factor(step) for step in range(STEPS + 1)]


def test_an_exponential_decay_has_the_same_factor_in_every_step() -> None:
    found = own("exponential", lr_floor=0.01)
    assert (found[0], found[5], found[10]) == (0.0, 0.5, 1.0)
    assert found[-1] == pytest.approx(0.01)
    shares = [after / before for before, after in itertools.pairwise(found[10:])]
    assert shares == pytest.approx([0.01 ** (1 / 90)] * 90)


def test_steps_lower_the_rate_at_their_milestones() -> None:
    found = own("step", schedule_milestones=[0.5, 0.9], schedule_gamma=0.5)
    assert [found[step] for step in (10, 54, 55, 90, 91, 100)] == [1, 1, 0.5, 0.5, 0.25, 0.25]


def test_restarts_end_at_their_floor() -> None:
    found = own("cosine_restarts", lr_floor=0.1, schedule_cycles=3)
    assert (found[10], found[40], found[70]) == pytest.approx((1, 1, 1))
    assert found[-1] == pytest.approx(0.1)
    assert min(found[10:]) == pytest.approx(0.1, abs=1e-3)
    plain = TrainConfig(schedule="cosine_restarts")
    assert own_factor(plain, STEPS, 10) is None


def test_polynomial_and_wsd_have_their_settings() -> None:
    assert factors("polynomial", schedule_power=3.0)[55] == pytest.approx(0.125)
    assert factors("wsd", schedule_decay=0.5)[49] == 1.0
    assert factors("wsd", schedule_decay=0.5)[80] < 0.5


class _Layers(torch.nn.Module):
    """A model with an embedding, three layers and a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = torch.nn.Embedding(5, 2)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(2, 2) for _ in range(3))
        self.norm = torch.nn.LayerNorm(2)

    def get_input_embeddings(self) -> torch.nn.Module:
        return self.embed_tokens


def rates(model: torch.nn.Module, **ratios: Any) -> dict[str, float]:
    """The learning rate of each weight, for a rate of 1."""
    recipe = TrainConfig(steps=1, lr=1.0, lr_ratios=LrRatios(**ratios))
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    made = parameter_groups(model, recipe, set())
    return {names[id(p)]: group["lr"] for group in made for p in group["params"]}


def test_rates_decay_from_the_last_layer_to_the_embedding() -> None:
    found = rates(_Layers(), layer_decay=0.5)
    assert found["embed_tokens.weight"] == 0.125
    assert [found[f"layers.{i}.weight"] for i in range(3)] == [0.25, 0.5, 1.0]
    assert found["norm.weight"] == 1.0


def test_a_pattern_gives_weights_a_rate_of_their_own() -> None:
    found = rates(_Layers(), patterns={r"layers\.0\..*": 0.1, ".*bias": 3.0})
    assert [found[f"layers.{i}.bias"] for i in range(3)] == [0.1, 3.0, 3.0]
    assert (found["layers.0.weight"], found["layers.1.weight"]) == (0.1, 1.0)


@pytest.mark.parametrize(
    ("model", "ratios", "words"),
    [
        (_Layers, {"patterns": {"layers.*": 2.0, "layers.0.*": 3.0}}, r"layers\.0.* no trained"),
        (_Adapter, {"patterns": {".*nothing.*": 2.0}}, "for example, lora_A.weight"),
        (_Adapter, {"layer_decay": 0.9}, "names of this model's weights show no layers"),
    ],
)
def test_ratios_that_no_weight_has_are_refused(
    model: type[torch.nn.Module], ratios: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        rates(model(), **ratios)


def test_groups_name_their_weights_unless_only_ratios_differ() -> None:
    def ids(**ratios: Any) -> list[str | None]:
        recipe = TrainConfig(steps=1, lr_ratios=LrRatios(**ratios))
        return [group.get("weights_id") for group in parameter_groups(_Layers(), recipe, set())]

    assert ids() == ids(lora_b=4.0) == [None]
    assert ids(patterns={".*norm.*": 2.0}) == ids(patterns={".*norm.*": 3.0})
    assert ids(patterns={".*norm.*": 2.0}) != ids(patterns={".*bias": 2.0})


def test_muon_gets_the_matrices_of_layers_alone() -> None:
    recipe = TrainConfig(steps=1, optimizer="muon")
    model = _Layers()
    made = parameter_groups(model, recipe, set())
    matrices = {id(p) for group in made if group["matrices"] for p in group["params"]}
    assert matrices == {id(layer.weight) for layer in model.layers}
    optimizer = build_own("muon", made, recipe)
    optimizer.add_param_group({"params": [torch.zeros((), requires_grad=True)], "lr": 1.0})
    before = [parameter.detach().clone() for parameter in model.parameters()]
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    after = list(model.parameters())
    assert all(not torch.equal(*pair) for pair in zip(before, after, strict=True))
    (own,) = (group["params"] for group in made if group["matrices"])
    assert [tuple(optimizer.state[p]) for p in own] == [("momentum_buffer",)] * 3
    assert "exp_avg" in optimizer.state[model.norm.weight]


def test_lookahead_returns_halfway_to_its_slow_weights() -> None:
    weight = torch.nn.Parameter(torch.zeros(2))
    twin = torch.nn.Parameter(torch.zeros(2))
    looking = LookaheadAdamW([weight], lr=0.1)
    plain = torch.optim.AdamW([twin], lr=0.1)
    for step in range(5):
        assert torch.equal(weight, twin), step
        weight.grad, twin.grad = torch.ones(2), torch.ones(2)
        looking.step()
        plain.step()
    assert torch.allclose(weight, twin / 2)
    assert torch.equal(looking.state[weight]["slow_weight"], weight)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pytorch_optimizer", None)
    with pytest.raises(ConfigError, match=r"pip install 'fttui\[optimizers\]'"):
        build_own("lars", [{"params": [torch.zeros(1)]}], TrainConfig(optimizer="lars"))


def test_every_optimizer_is_made_by_somebody() -> None:
    (names,) = [f.type for f in msgspec.structs.fields(TrainConfig) if f.name == "optimizer"]
    assert set(get_args(names)) == set(OPTIMIZERS)
    assert set(OWN) | set(OPTIMIZER_NAMES_OF_TRANSFORMERS) | {"sam"} == set(OPTIMIZERS)
    bases = get_type_hints(SamConfig)["base"]
    assert set(get_args(bases)) == set(OPTIMIZERS) - {"sam", "sophia", "galore", "apollo"}


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
