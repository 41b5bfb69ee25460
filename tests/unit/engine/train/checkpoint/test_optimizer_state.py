"""The state of every optimizer comes back to the last bit, in place and in a new process."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fttui.engine.config.schema import TrainConfig
from fttui.engine.config.sections.optimizers import OPTIMIZERS, TrainedTensor, state_bytes
from fttui.engine.train.checkpoint.optimizer_state import (
    bit_sums,
    capture_optimizer,
    kind_of,
    live_tensors,
    misfit,
    restart_optimizer,
    restore_optimizer,
)
from tests.support.matrix import in_part
from tests.support.optimizers import Make, Trained, goes_back, goes_on, makers

SCRIPTS_ONLY = ["adafactor, own lr", "sgd, momentum"]
NAMES = [*OPTIMIZERS, *SCRIPTS_ONLY]
USUAL = ["adamw", "paged_adamw_8bit", "lion", "lamb", "muon", "lookahead", "galore", "apollo"]
DTYPES = [torch.float32, torch.bfloat16]
pytestmark = pytest.mark.filterwarnings("ignore:Paged optimizers are not supported on CPU")


@pytest.fixture(scope="module")
def made() -> dict[str, Make]:
    found = makers()
    assert sorted(found) == sorted(NAMES)
    return found


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", in_part(NAMES, USUAL))
def test_a_rollback_leaves_no_trace(made: dict[str, Make], name: str, dtype: torch.dtype) -> None:
    assert goes_back(made[name], 3, dtype=dtype)


@pytest.mark.parametrize("name", in_part(NAMES, USUAL))
def test_a_rollback_to_the_very_beginning_leaves_no_trace(made: dict[str, Make], name: str) -> None:
    assert goes_back(made[name], 0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", in_part(NAMES, USUAL))
def test_a_new_optimizer_goes_on_exactly(
    made: dict[str, Make], name: str, dtype: torch.dtype
) -> None:
    assert goes_on(made[name], 3, dtype=dtype)


@pytest.mark.parametrize("name", in_part(NAMES, USUAL))
def test_a_rollback_moves_no_tensor(made: dict[str, Make], name: str) -> None:
    one = Trained(made[name]).train(0, 1)
    saved, before = one.save(), one.addresses()
    assert one.train(2).load(saved).addresses() == before


def test_buffers_that_are_never_freed_are_reset_not_dropped(made: dict[str, Make]) -> None:
    one = Trained(made["paged_adamw_8bit"])
    start = one.save()
    before = one.train(0).addresses()
    assert one.load(start).addresses() == before


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", in_part(OPTIMIZERS, USUAL))
def test_the_plan_knows_the_size_of_every_state(
    made: dict[str, Make], name: str, dtype: torch.dtype
) -> None:
    one = Trained(made[name], dtype=dtype).train(0, 1)
    tables = [t for state in one.optimizer.state.values() for k, t in state.items() if "map" in k]
    held = sum(t.numel() * t.element_size() for t in live_tensors(one.optimizer))
    held -= sum(t.numel() * t.element_size() for t in tables)  # of 8-bit numbers, a few for a run
    tensors = [TrainedTensor(tuple(weight.shape)) for weight in one.weights]
    recipe = TrainConfig(optimizer=name)  # type: ignore[arg-type]  # a name of the table
    planned, paged = state_bytes(recipe, tensors, dtype.itemsize)
    rows_of_adafactor = name == "adafactor"
    assert held == pytest.approx(planned, rel=0.01) or rows_of_adafactor
    assert 0 <= paged <= planned
    assert (paged > 0) == name.startswith("paged")


def test_an_optimizer_restarts_as_if_it_had_never_stepped(made: dict[str, Make]) -> None:
    one = Trained(made["lamb"])
    fresh = capture_optimizer(one.optimizer)
    one.train(0)
    restart_optimizer(one.optimizer, fresh)
    assert not one.optimizer.state
    assert capture_optimizer(one.optimizer)["groups"] == fresh["groups"]


def test_the_state_of_other_groups_is_refused(made: dict[str, Make]) -> None:
    one = Trained(made["sgd"])
    for number, group in enumerate(one.optimizer.param_groups):
        group["weights_id"] = str(number)
    state = capture_optimizer(one.optimizer)
    assert misfit(one.optimizer, state) is None
    one.optimizer.param_groups[0]["weights_id"] = "other"
    assert "other groups of weights" in (misfit(one.optimizer, state) or "")
    del one.optimizer.param_groups[0]["weights_id"]
    assert "other groups of weights" in (misfit(one.optimizer, state) or "")


def test_a_resumed_run_gets_the_rate_and_decay_of_its_configuration() -> None:
    def make(lr: float, decay: float) -> Make:
        return lambda p: torch.optim.AdamW(p, lr=lr, weight_decay=decay, betas=(0.9, lr))

    saved = Trained(make(0.01, 0.1)).train(0).save()
    group = Trained(make(0.5, 0.2)).load(saved).optimizer.param_groups[0]
    assert (group["lr"], group["weight_decay"], group["betas"]) == (0.5, 0.2, (0.9, 0.01))


def test_the_state_of_another_optimizer_is_refused(made: dict[str, Make]) -> None:
    state = capture_optimizer(Trained(made["adamw"]).optimizer)
    problem = misfit(Trained(made["adamw_8bit"]).optimizer, state)
    assert problem is not None
    assert "torch AdamW" in problem
    assert "bitsandbytes AdamW 8-bit" in problem
    paged = Trained(made["paged_adamw_8bit"]).optimizer
    assert kind_of(paged) == kind_of(Trained(made["adamw_8bit"]).optimizer)


def test_the_state_of_other_weights_is_refused(made: dict[str, Make]) -> None:
    one = Trained(made["sgd"])
    state: dict[str, Any] = capture_optimizer(one.optimizer)
    one.optimizer.add_param_group({"params": [torch.zeros(3, requires_grad=True)]})
    assert "3 weights in 2 groups, this run trains 4 in 3" in (misfit(one.optimizer, state) or "")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8, torch.int64])
def test_one_changed_bit_changes_the_sum(dtype: torch.dtype) -> None:
    tensor = torch.arange(300).to(dtype)
    before = bit_sums([tensor, torch.zeros(())])
    tensor.view(torch.uint8)[7] ^= 4
    after = bit_sums([tensor, torch.zeros(())])
    assert (before[0] != after[0], before[1] == after[1]) == (True, True)


@pytest.mark.parametrize(
    ("options", "home"),
    [
        ({}, "cpu"),
        ({"fused": False}, "cpu"),
        ({"fused": True}, "meta"),
        ({"capturable": True}, "meta"),
    ],
)
def test_step_counters_go_to_the_device_only_for_optimizers_that_keep_them_there(
    options: dict[str, bool], home: str
) -> None:
    weight = torch.nn.Parameter(torch.empty(2, device="meta"))
    optimizer = torch.optim.AdamW([weight], lr=0.1)
    optimizer.param_groups[0].update(options)
    state = {"step": torch.tensor(3.0), "exp_avg": torch.ones(2)}
    saved = {"kind": kind_of(optimizer), "groups": [dict(options)], "state": [state]}
    restore_optimizer(optimizer, saved)
    restored = optimizer.state[weight]
    assert restored["step"].device.type == home
    assert restored["exp_avg"].device.type == "meta"
