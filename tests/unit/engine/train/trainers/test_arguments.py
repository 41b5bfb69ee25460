"""What the Hugging Face trainer is told, and what it must leave to fttui."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from transformers import TrainingArguments
from transformers.trainer_utils import SaveStrategy

from fttui.engine.config.schema import RunConfig
from fttui.engine.config.step_plan import plan_steps
from fttui.engine.errors import ConfigError
from fttui.engine.train.trainers.arguments import trainer_arguments


def arguments(folder: Path, device: str = "cpu", **train: Any) -> dict[str, Any]:
    config = msgspec.convert(
        {
            "model": {"id": "m", "precision": "fp32"},
            "data": {"train": "d"},
            "train": {"steps": 40, "batch": 3, "accumulate": 2, "lr": 0.01, **train},
        },
        RunConfig,
    )
    found: dict[str, Any] = trainer_arguments(
        config, plan_steps(config, 100, 1), torch.device(device), folder
    )
    return found


def test_logging_saving_evaluating_and_dropping_of_columns_are_off(tmp_path: Path) -> None:
    found = TrainingArguments(**arguments(tmp_path))
    assert not found.remove_unused_columns
    assert found.disable_tqdm
    assert found.report_to == []
    assert not found.logging_nan_inf_filter
    assert not found.ddp_find_unused_parameters
    assert found.save_strategy == SaveStrategy.NO
    assert {found.logging_strategy.value, found.eval_strategy.value} == {"no"}


def test_ddp_keeps_the_order_of_sums_over_more_than_two_ranks(tmp_path: Path) -> None:
    for devices, nodes, kept in ((2, 1, False), (3, 1, True), (1, 4, True)):
        found = arguments(tmp_path, devices=devices, nodes=nodes)
        assert found["ddp_find_unused_parameters"] == kept


def test_the_plan_and_the_configuration_are_passed_on(tmp_path: Path) -> None:
    found = arguments(tmp_path, warmup=4, weight_decay=0.2, seed=9, deterministic=True)
    assert (found["max_steps"], found["warmup_steps"]) == (40, 4)
    assert (found["per_device_train_batch_size"], found["gradient_accumulation_steps"]) == (3, 2)
    assert (found["learning_rate"], found["weight_decay"], found["seed"]) == (0.01, 0.2, 9)
    assert found["full_determinism"]
    assert found["neftune_noise_alpha"] is None
    assert arguments(tmp_path, neftune=5.0)["neftune_noise_alpha"] == 5.0
    assert found["use_cpu"]
    assert (found["bf16"], found["fp16"]) == (False, False)


@pytest.mark.parametrize(
    ("train", "name", "options"),
    [
        ({"schedule": "linear"}, "linear", {}),
        ({"schedule": "linear", "lr_floor": 0.1}, "polynomial", {"lr_end": 0.001, "power": 1.0}),
        ({"schedule": "polynomial"}, "polynomial", {"lr_end": 0.0, "power": 2.0}),
        ({"schedule": "cosine"}, "cosine", {}),
        ({"schedule": "cosine", "lr_floor": 0.1}, "cosine_with_min_lr", {"min_lr_rate": 0.1}),
        (
            {"schedule": "cosine_restarts", "schedule_cycles": 3},
            "cosine_with_restarts",
            {"num_cycles": 3},
        ),
        (
            {"schedule": "wsd", "lr_floor": 0.1},
            "warmup_stable_decay",
            {"num_decay_steps": 8, "min_lr_ratio": 0.1},
        ),
        ({"schedule": "wsd", "steps": 1, "warmup": 0}, "warmup_stable_decay",
         {"num_decay_steps": 1, "min_lr_ratio": 0.0}),
    ],
)  # fmt: skip
def test_a_schedule_with_a_floor_may_have_another_name(
    tmp_path: Path, train: dict[str, Any], name: str, options: dict[str, Any]
) -> None:
    found = arguments(tmp_path, **train)
    assert found["lr_scheduler_type"] == name
    assert found["lr_scheduler_kwargs"] == pytest.approx(options)


@pytest.mark.parametrize(
    ("device", "train", "name"),
    [
        ("cpu", {}, "adamw_torch"),
        ("cpu", {"fast": "static"}, "adamw_torch_fused"),
        ("cuda", {}, "adamw_torch_fused"),
        ("cuda", {"optimizer": "lion"}, "lion_32bit"),
        ("cpu", {"optimizer": "lamb"}, "adamw_torch"),
    ],
)
def test_adamw_is_fused_on_a_gpu(
    tmp_path: Path, device: str, train: dict[str, Any], name: str
) -> None:
    assert arguments(tmp_path, device, **{"optimizer": "adamw", **train})["optim"] == name


def test_an_undecided_micro_batch_is_refused_and_a_divided_update_passed_on(tmp_path: Path) -> None:
    divided: dict[str, Any] = {"accumulate": None, "sequences_per_update": 12}
    with pytest.raises(ConfigError, match=r"train.batch: got auto.*fttui run"):
        arguments(tmp_path, batch="auto", **divided)
    found = arguments(tmp_path, **divided)
    assert found["per_device_train_batch_size"] == 3
    assert found["gradient_accumulation_steps"] == 4
