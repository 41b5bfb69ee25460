"""Keys about several devices: what becomes FSDP, what stays whole, and that the rows say so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from fttui.engine.config.checks import check_config
from fttui.engine.config.foreign.draft import Imported
from fttui.engine.config.foreign.reading import read_foreign
from fttui.engine.config.foreign.writing import written
from fttui.engine.config.load import load_config

AXOLOTL: dict[str, Any] = {
    "base_model": "org/model",
    "adapter": "qlora",
    "load_in_4bit": True,
    "datasets": [{"path": "org/data", "type": "chat_template"}],
    "micro_batch_size": 1,
    "optimizer": "adamw_torch",
    "learning_rate": 1e-4,
}
TRL: dict[str, Any] = {
    "model_name_or_path": "org/model",
    "dataset_name": "org/data",
    "use_peft": True,
    "lora_target_modules": "all-linear",
    "packing": False,
    "per_device_train_batch_size": 1,
    "learning_rate": 1e-4,
}


def read(base: dict[str, Any], **changes: Any) -> Imported:
    return read_foreign(Path("other.yaml"), yaml.safe_dump({**base, **changes}))


def verdicts(imported: Imported, key: str) -> list[str]:
    return [row.verdict for row in imported.rows if row.key == key]


@pytest.mark.parametrize(
    ("base", "changes"),
    [
        (AXOLOTL, {"fsdp": ["full_shard", "auto_wrap"], "fsdp_config": {"fsdp_version": 2}}),
        (AXOLOTL, {"fsdp_version": 2, "fsdp_config": {"offload_params": False}}),
        (AXOLOTL, {"deepspeed": "deepspeed_configs/zero3_bf16.json"}),
        (AXOLOTL, {"deepspeed": {"zero_optimization": {"stage": 3}}}),
        (AXOLOTL, {"dp_shard_size": 2}),
        (AXOLOTL, {"tensor_parallel_size": 2}),
        (TRL, {"fsdp": "full_shard auto_wrap"}),
        (TRL, {"deepspeed": "ds_z3_offload_config.json"}),
        (TRL, {"parallelism_config": {"dp_shard_size": 2}}),
    ],
)
def test_a_model_in_parts_becomes_fsdp_and_passes_all_checks(
    tmp_path: Path, base: dict[str, Any], changes: dict[str, Any]
) -> None:
    imported = read(base, **changes)
    assert not imported.of("refused", "dropped")
    assert imported.values["train.strategy"] == "fsdp"
    (tmp_path / "my.yaml").write_text(written(imported, "other.yaml", ""))
    config = load_config(tmp_path / "my.yaml").config
    assert config.train.devices == 2
    assert check_config(config) == []


@pytest.mark.parametrize(
    ("base", "changes", "verdict"),
    [
        (AXOLOTL, {"fsdp": ["no_shard"]}, "no effect"),
        (AXOLOTL, {"fsdp": []}, "no effect"),
        (AXOLOTL, {"deepspeed": "ds_z0_config.json"}, "no effect"),
        (AXOLOTL, {"deepspeed": "deepspeed_configs/zero2.json"}, "nearly"),
        (AXOLOTL, {"tensor_parallel_size": 1}, "no effect"),
        (AXOLOTL, {"context_parallel_size": 2}, "nearly"),
        (AXOLOTL, {"expert_parallel_size": 4}, "nearly"),
        (TRL, {"fsdp_config": {"min_num_params": 0}}, "no effect"),
        (TRL, {"parallelism_config": {"cp_size": 2}}, "nearly"),
        (TRL, {"parallelism_config": {"tp_size": 1}}, "no effect"),
    ],
)
def test_what_asks_for_no_model_in_parts_leaves_it_whole(
    base: dict[str, Any], changes: dict[str, Any], verdict: str
) -> None:
    imported = read(base, **changes)
    assert "train.strategy" not in imported.values
    (key,) = changes
    assert verdicts(imported, key) == [verdict]
    assert not imported.of("refused", "dropped")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"load_in_4bit": False, "load_in_8bit": True, "adapter": "lora"}, "model.quantize"),
        ({"lora_modules_to_save": ["lm_head"]}, "adapter.modules_to_save"),
        ({"peft_use_dora": True}, "adapter.dora"),
        ({"optimizer": "muon"}, "train.optimizer"),
        ({"rl": "dpo", "datasets": [{"path": "a", "type": "chatml.intel"}]}, "train.strategy"),
    ],
)
def test_a_model_that_cannot_be_split_stays_whole_and_the_row_names_why(
    changes: dict[str, Any], named: str
) -> None:
    imported = read(AXOLOTL, fsdp=["full_shard"], **changes)
    assert "train.strategy" not in imported.values
    (row,) = [row for row in imported.rows if row.key == "fsdp"]
    assert row.verdict == "nearly"
    assert f"whole model: {named}: got" in row.reason


def test_an_optimizer_with_8_bit_state_is_replaced_and_says_so() -> None:
    imported = read(AXOLOTL, fsdp=["full_shard"], optimizer="paged_adamw_8bit")
    assert imported.values["train.optimizer"] == "adamw"
    (row,) = [row for row in imported.rows if row.key == "optimizer"]
    assert (row.verdict, row.ours) == ("nearly", "train.optimizer: adamw")
    assert "8 bits" in row.reason
    assert read(AXOLOTL, optimizer="paged_adamw_8bit").values["train.optimizer"] != "adamw"


def test_weights_in_host_memory_are_named() -> None:
    row = {"fsdp": ["full_shard"], "fsdp_config": {"fsdp_offload_params": True}}
    assert verdicts(read(AXOLOTL, **row), "fsdp_config") == ["nearly"]
    assert verdicts(read(AXOLOTL, fsdp=["full_shard"]), "fsdp") == ["same"]


@pytest.mark.parametrize(
    ("changes", "devices"),
    [
        ({"dp_shard_size": 4, "tensor_parallel_size": 2}, 8),
        ({"expert_parallel_size": 4, "dp_shard_size": 2}, 4),
        ({"use_ray": True, "ray_num_workers": 3}, 3),
        ({"dp_shard_size": 1}, None),
    ],
)
def test_the_number_of_devices_is_taken_over(changes: dict[str, Any], devices: int | None) -> None:
    assert read(AXOLOTL, **changes).values.get("train.devices") == devices


def test_keys_that_only_change_a_run_of_lora_need_consent() -> None:
    for key, value in (
        ("relora", True),
        ("lora_target_parameters", ["experts.down_proj"]),
        ("curriculum_sampling", True),
    ):
        assert [row.key for row in read(AXOLOTL, **{key: value}).of("dropped")] == [key]
    assert verdicts(read(AXOLOTL, gptq=True), "gptq") == ["nearly"]


@pytest.mark.parametrize(
    ("value", "verdict"),
    [("out/checkpoint-9", "dropped"), (True, "no effect"), ("true", "no effect")],
)
def test_only_a_named_checkpoint_is_missed(value: Any, verdict: str) -> None:
    imported = read(AXOLOTL, resume_from_checkpoint=value)
    assert verdicts(imported, "resume_from_checkpoint") == [verdict]
