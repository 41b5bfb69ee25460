"""Configurations of other tools: every key has a row, and the values are those of the tool."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from fttui.engine.config.foreign.adapters import MESSAGE_KEYS
from fttui.engine.config.foreign.draft import Imported
from fttui.engine.config.foreign.reading import hint_of, read_foreign, tool_of
from fttui.engine.config.foreign.writing import comments_of, written
from fttui.engine.config.load import load_config
from fttui.engine.config.schema import PreferenceConfig, RunConfig
from fttui.engine.data.reading import first_records
from fttui.engine.data.records.formats import PreferenceRecord, RatedRecord
from fttui.engine.data.records.messages import CONTENT_KEYS, ROLE_KEYS
from fttui.engine.errors import ConfigError

AXOLOTL: dict[str, Any] = {
    "base_model": "org/model",
    "load_in_4bit": True,
    "adapter": "qlora",
    "lora_r": 32,
    "lora_alpha": 16,
    "lora_dropout": 0.05,
    "lora_target_linear": True,
    "datasets": [{"path": "a.jsonl", "type": "alpaca", "split": "train"}],
    "val_set_size": 0.05,
    "sequence_len": 2048,
    "sample_packing": True,
    "micro_batch_size": 2,
    "gradient_accumulation_steps": 4,
    "num_epochs": 3,
    "optimizer": "adamw_bnb_8bit",
    "lr_scheduler": "cosine",
    "learning_rate": 2e-4,
    "bf16": "auto",
    "warmup_ratio": 0.1,
    "evals_per_epoch": 4,
    "saves_per_epoch": 1,
    "flash_attention": True,
    "wandb_project": "w",
    "special_tokens": {"pad_token": "<pad>"},
}
LLAMA_FACTORY: dict[str, Any] = {
    "model_name_or_path": "org/model",
    "stage": "sft",
    "finetuning_type": "lora",
    "lora_rank": 4,
    "lora_target": "q_proj, v_proj",
    "dataset": "first,second",
    "template": "llama3",
    "cutoff_len": 512,
    "max_samples": 1000,
    "per_device_train_batch_size": 1,
    "gradient_accumulation_steps": 8,
    "learning_rate": 1e-4,
    "num_train_epochs": 3,
    "lr_scheduler_type": "cosine",
    "warmup_ratio": 0.1,
    "bf16": True,
    "val_size": 0.1,
    "eval_strategy": "steps",
    "eval_steps": 500,
    "save_steps": 300,
    "quantization_bit": 4,
}
TABLE = {
    "first": {"hf_hub_url": "org/data", "subset": "en"},
    "second": {
        "file_name": "chats.json",
        "formatting": "sharegpt",
        "columns": {"messages": "talk", "system": "rules"},
        "tags": {"role_tag": "from", "content_tag": "value", "user_tag": "person"},
    },
    "pictures": {"file_name": "p.json", "columns": {"images": "images"}},
}
TRL: dict[str, Any] = {
    "model_name_or_path": "org/model",
    "model_revision": "main",
    "dataset_mixture": {
        "datasets": [{"id": "org/one", "config": "all", "split": "train", "weight": 1.0}],
        "test_split_size": 0.1,
    },
    "load_in_4bit": True,
    "use_peft": True,
    "lora_r": 8,
    "lora_target_modules": ["q_proj", "k_proj"],
    "beta": 0.05,
    "loss_type": "ipo",
    "learning_rate": 5e-6,
    "max_length": 1024,
    "max_prompt_length": 512,
    "num_train_epochs": 1,
    "max_steps": -1,
    "per_device_train_batch_size": 4,
    "eval_strategy": "epoch",
    "save_strategy": "steps",
    "save_steps": 0.25,
    "lr_scheduler_type": "cosine_with_min_lr",
    "lr_scheduler_kwargs": {"min_lr_rate": 0.1},
    "warmup_ratio": 0.1,
    "bf16": True,
    "seed": 42,
    "output_dir": "out",
}
DPO = {"rl": "dpo", "datasets": [{"path": "a.jsonl", "type": "chat_template.default"}]}
NO_METHOD: dict[str, Any] = dict.fromkeys(("beta", "loss_type", "max_prompt_length"), "absent")
"""Changes to `TRL` that leave no key of a trainer for preferences."""


def read(tmp_path: Path, base: dict[str, Any], task: str | None = None, **changes: Any) -> Imported:
    given = {key: value for key, value in {**base, **changes}.items() if value != "absent"}
    (tmp_path / "data").mkdir(exist_ok=True)
    (tmp_path / "data/dataset_info.json").write_text(json.dumps(TABLE))
    return read_foreign(tmp_path / "other.yaml", yaml.safe_dump(given), task)


def loaded(tmp_path: Path, imported: Imported) -> RunConfig:
    (tmp_path / "my.yaml").write_text(written(imported, "other.yaml", ""))
    return load_config(tmp_path / "my.yaml").config


@pytest.mark.parametrize("base", [AXOLOTL, LLAMA_FACTORY, TRL], ids=["axolotl", "lf", "trl"])
def test_every_key_has_a_row_and_the_file_loads(tmp_path: Path, base: dict[str, Any]) -> None:
    imported = read(tmp_path, base)
    named = {row.key.split("[")[0].split(":")[0] for row in imported.rows}
    assert set(base) <= named
    assert not imported.of("refused", "dropped")
    loaded(tmp_path, imported)


def test_axolotl_keys_and_defaults(tmp_path: Path) -> None:
    config = loaded(tmp_path, read(tmp_path, AXOLOTL))
    assert (config.model.id, config.model.quantize) == ("org/model", "nf4")
    assert (config.adapter.r, config.adapter.alpha, config.adapter.dropout) == (32, 16, 0.05)
    assert (config.train.batch, config.train.accumulate, config.train.epochs) == (2, 4, 3.0)
    assert (config.train.optimizer, config.train.warmup) == ("adamw_8bit", 0.1)
    assert (config.eval.per_epoch, config.checkpoint.per_epoch) == (4, 1)
    assert (config.data.eval_fraction, config.data.packing) == (0.05, True)
    (source,) = config.data.sources
    assert source.columns is not None
    prompts = source.columns["prompt"]
    assert isinstance(prompts, list)
    assert ["{input}" in text for text in prompts] == [True, False]
    bare = read(tmp_path, AXOLOTL, lora_dropout="absent", warmup_ratio="absent",
                evals_per_epoch="absent", num_epochs="absent")  # fmt: skip
    assert bare.values["adapter.dropout"] == 0.0
    assert (bare.values["train.warmup"], bare.values["train.epochs"]) == (0.03, 1.0)
    assert bare.values["eval.per_epoch"] == 1


def test_llama_factory_keys_and_its_table(tmp_path: Path) -> None:
    config = loaded(tmp_path, read(tmp_path, LLAMA_FACTORY))
    assert (config.adapter.r, config.adapter.alpha, config.adapter.dropout) == (4, 8, 0.0)
    assert config.adapter.targets == ["q_proj", "v_proj"]
    first, second = config.data.sources
    assert first.path == "org/data:en"
    assert second.path == str(tmp_path / "data/chats.json")
    assert second.columns == {"messages": "talk", "system": "rules"}
    assert second.roles == {"person": "user"}
    assert (config.eval.every, config.checkpoint.every) == (500, 300)
    assert config.data.train_limit == 1000
    assert config.data.template is not None
    assert "eot_id" in config.data.template


def test_trl_keys_and_intervals_that_are_shares(tmp_path: Path) -> None:
    config = loaded(tmp_path, read(tmp_path, TRL))
    assert (config.task, config.preference.loss, config.preference.beta) == ("dpo", "ipo", 0.05)
    assert config.data.sources[0].path == "org/one:all"
    assert (config.eval.per_epoch, config.checkpoint.per_epoch) == (1, 4)
    assert (config.train.lr_floor, config.train.seed) == (0.1, 42)
    steps = read(tmp_path, TRL, max_steps=200)
    assert (steps.values["train.steps"], steps.values["checkpoint.every"]) == (200, 50)
    bare = read(tmp_path, TRL, **NO_METHOD)
    assert bare.values["task"] == "sft"
    assert read(tmp_path, TRL, "kto", loss_type="kto").values["task"] == "kto"


def test_reward_models_are_carried_over(tmp_path: Path) -> None:
    rl = read(tmp_path, AXOLOTL, reward_model=True, center_rewards_coefficient=0.01, num_labels=1)
    assert (rl.values["task"], rl.values["reward.centering"]) == ("reward", 0.01)
    assert {row.key for row in rl.of("refused")} == {"datasets[0].type"}  # alpaca
    assert read(tmp_path, LLAMA_FACTORY, stage="rm").values["task"] == "reward"
    stated = read(tmp_path, TRL, **NO_METHOD, center_rewards_coefficient=0.02)
    assert (stated.values["task"], stated.values["reward.centering"]) == ("reward", 0.02)
    assert (stated.values["train.lr"], stated.values["adapter.dropout"]) == (5e-6, 0.0)
    head: dict[str, Any] = {"lora_task_type": "SEQ_CLS", "lora_modules_to_save": ["score"]}
    bare = read(tmp_path, TRL, **{**NO_METHOD, **head, "learning_rate": "absent"})
    assert (bare.values["task"], bare.values["train.lr"]) == ("reward", 1e-4)
    assert not bare.of("refused", "dropped")
    assert loaded(tmp_path, bare).adapter.modules_to_save == []


@pytest.mark.parametrize(
    ("changes", "task", "certain"),
    [
        ({}, "dpo", False),
        ({"rpo_alpha": 1.0}, "dpo", True),
        ({"loss_type": "absent", "cpo_alpha": 0.5}, "dpo", True),
        ({"loss_type": "kto"}, "kto", True),
        ({"loss_type": "absent", "beta": "absent", "max_prompt_length": 64}, "dpo", False),
        (NO_METHOD, "sft", False),
        ({**NO_METHOD, "packing": True}, "sft", True),
        ({**NO_METHOD, "loss_type": "nll"}, "sft", True),
    ],
)
def test_a_trainer_of_trl_that_the_keys_leave_open_is_said(
    tmp_path: Path, changes: dict[str, Any], task: str, certain: bool
) -> None:
    imported = read(tmp_path, TRL, **changes)
    (row,) = [row for row in imported.rows if row.ours == f"task: {task}"]
    assert row.verdict == ("same" if certain else "nearly")
    assert certain or "--set preference.loss=orpo" in row.reason


@pytest.mark.parametrize(
    "names",
    [{"hub_model_id": "org/zephyr-ORPO-7b"}, {"output_dir": "out/kto_run"}, {"run_name": "cpo"}],
)
def test_another_method_in_a_name_is_asked_about(tmp_path: Path, names: dict[str, Any]) -> None:
    (row,) = read(tmp_path, TRL, **names).of("refused")
    assert str(next(iter(names.values()))) in row.value
    assert "--set preference.loss=orpo" in row.reason
    assert not read(tmp_path, TRL, "dpo", **names).of("refused")
    assert not read(tmp_path, TRL, hub_model_id="org/corpo-dpo-7b").of("refused")
    assert read(tmp_path, TRL, rpo_alpha=1.0, **names).of("refused") == []


def test_losses_without_reference_are_carried_over_with_the_default_weights(tmp_path: Path) -> None:
    rows: list[tuple[dict[str, Any], dict[str, Any], tuple[str, float, float]]] = [
        (TRL, {"loss_type": "simpo", "simpo_gamma": 0.9}, ("simpo", 0.9, 1.0)),
        (TRL, {"loss_type": "simpo", "cpo_alpha": 0}, ("simpo", 0.5, 0.0)),
        (TRL, {"loss_type": "absent", "cpo_alpha": 0.5}, ("cpo", 0.5, 0.5)),
        (TRL, {"loss_type": "hinge", "cpo_alpha": 1, "simpo_gamma": 1}, ("slic", 0.5, 1.0)),
        (TRL, {"loss_type": "alphapo", "cpo_alpha": 1, "alpha": 0.25}, ("simpo", 0.5, 0.0)),
        (AXOLOTL, {"rl": "orpo", "orpo_alpha": 0.2}, ("orpo", 0.5, 1.0)),
        (AXOLOTL, {"rl": "simpo", "simpo_gamma": 1.5}, ("simpo", 1.5, 1.0)),
        (LLAMA_FACTORY, {"stage": "dpo", "pref_loss": "simpo"}, ("simpo", 0.5, 0.0)),
        (LLAMA_FACTORY, {"stage": "dpo", "pref_loss": "orpo"}, ("orpo", 0.5, 1.0)),
        (LLAMA_FACTORY, {"stage": "dpo", "pref_loss": "orpo", "pref_ftx": 0}, ("orpo", 0.5, 1.0)),
        (LLAMA_FACTORY, {"stage": "dpo", "pref_loss": "orpo", "pref_ftx": 0.5}, ("orpo", 0.5, 1.5)),
        (AXOLOTL, {"rl": "dpo", "dpo_loss_type": ["ipo"]}, ("ipo", 0.5, 0.0)),
    ]
    for base, changes, expected in rows:
        found = read(tmp_path, base, **changes)
        given = {
            path.removeprefix("preference."): value
            for path, value in found.values.items()
            if path.startswith("preference.")
        }
        own = msgspec.convert(given, PreferenceConfig)
        assert (own.loss, own.gamma, own.next_token_weight) == expected
        assert found.values["task"] == "dpo"
        if base is LLAMA_FACTORY and own.loss == "orpo":
            assert not own.next_token_on_prompt


MIXED = {"loss_type": ["sigmoid", "bco_pair", "sft"], "loss_weights": [0.8, 0.2, 1.0]}
ALPHA = {"f_divergence_type": "alpha_divergence", "f_alpha_divergence_coef": 0.3}


@pytest.mark.parametrize(
    ("base", "changes", "expected"),
    [
        (TRL, MIXED, {"loss": {"sigmoid": 0.8, "bco_pair": 0.2}, "ce_weight": 1.0}),
        (TRL, {"loss_type": ["aot", "sigmoid"]}, {"loss": {"aot": 1.0, "sigmoid": 1.0}}),
        (
            TRL,
            {"loss_type": "discopop", "discopop_tau": 0.1, "label_smoothing": 0.1},
            {"loss": "discopop", "discopop_tau": 0.1},
        ),
        (TRL, {"loss_type": "nca_pair", "ld_alpha": 0.5}, {"loss": "nca_pair", "ld_alpha": 0.5}),
        (
            TRL,
            {"loss_type": "exo_pair", "label_smoothing": 0.001, "discopop_tau": 0.05},
            {"loss": "exo_pair", "label_smoothing": 0.001},
        ),
        (TRL, {**ALPHA, "loss_type": "hinge"},
         {"loss": "hinge", "f_divergence": "alpha_divergence", "f_alpha": 0.3}),
        (TRL, {"f_divergence_type": "FDivergenceType.JS_DIVERGENCE", "loss_type": "ipo"},
         {"loss": "ipo", "f_divergence": "js_divergence"}),
        (
            TRL,
            {"loss_type": "simpo", "alpha": 0.25, "cpo_alpha": 0},
            {"loss": "simpo", "reward_alpha": 0.25, "ce_weight": 0.0},
        ),
        (TRL, {"loss_type": "apo_zero_unpaired"}, {"rated_loss": "apo_zero_unpaired"}),
        (
            AXOLOTL,
            {**DPO, "dpo_loss_type": ["apo_down", "sft"], "dpo_loss_weights": [1, 0.5]},
            {"loss": "apo_down", "ce_weight": 0.5},
        ),
        (AXOLOTL, {**DPO, "dpo_loss_weights": [2]}, {"loss": {"sigmoid": 2.0}}),
        (
            LLAMA_FACTORY,
            {"stage": "dpo", "pref_loss": "hinge", "pref_bco_weight": 1.0, "ld_alpha": 0.3},
            {"loss": {"hinge": 0.5, "bco_pair": 0.5}, "ld_alpha": 0.3},
        ),
    ],
)  # fmt: skip
def test_losses_with_reference_are_carried_over_with_their_numbers(
    tmp_path: Path, base: dict[str, Any], changes: dict[str, Any], expected: dict[str, Any]
) -> None:
    found = read(tmp_path, base, **changes)
    given = {
        path.removeprefix("preference."): value
        for path, value in found.values.items()
        if path.startswith("preference.") and path != "preference.beta"
    }
    assert given == expected
    assert not found.of("refused", "dropped")
    own = loaded(tmp_path, found)
    assert msgspec.to_builtins(own.preference).items() >= expected.items()


@pytest.mark.parametrize(
    ("base", "changes", "key"),
    [
        (AXOLOTL, {"adapter": "ia3"}, "adapter"),
        (AXOLOTL, {"rl": "grpo"}, "rl"),
        (AXOLOTL, {**DPO, "dpo_loss_type": ["sft"]}, "dpo_loss_type"),
        (AXOLOTL, {**DPO, "dpo_loss_type": ["sigmoid", "kto_pair"]}, "dpo_loss_type"),
        (
            AXOLOTL,
            {**DPO, "dpo_loss_type": ["ipo"], "dpo_loss_weights": [1, 2]},
            "dpo_loss_weights",
        ),
        (AXOLOTL, {**DPO, "dpo_use_weighting": True}, "dpo_use_weighting"),
        (AXOLOTL, {**DPO, "num_labels": 2}, "num_labels"),
        (AXOLOTL, {"optimizer": "lomo"}, "optimizer"),
        (AXOLOTL, {"lr_scheduler": "rex"}, "lr_scheduler"),
        (AXOLOTL, {"datasets": [{"path": "a", "type": "own.strategy"}]}, "datasets[0].type"),
        (AXOLOTL, {"datasets": "absent"}, "datasets"),
        (AXOLOTL, {"tokenizer_config": "other/model"}, "tokenizer_config"),
        (LLAMA_FACTORY, {"dataset": "unlisted"}, "dataset: unlisted"),
        (LLAMA_FACTORY, {"dataset": "pictures"}, "dataset: pictures"),
        (LLAMA_FACTORY, {"stage": "ppo"}, "stage"),
        (LLAMA_FACTORY, {"finetuning_type": "oft"}, "finetuning_type"),
        (LLAMA_FACTORY, {"quantization_method": "hqq"}, "quantization_bit"),
        (LLAMA_FACTORY, {"use_galore": True}, "use_galore"),
        (TRL, {"loss_type": "kto_pair"}, "loss_type"),
        (TRL, {"loss_type": "sigmoid", "f_divergence_type": "chi"}, "f_divergence_type"),
        (TRL, {"use_weighting": True}, "use_weighting"),
        (TRL, {"num_generations": 8}, "num_generations"),
    ],
)
def test_what_cannot_be_trained_is_refused_by_name(
    tmp_path: Path, base: dict[str, Any], changes: dict[str, Any], key: str
) -> None:
    refused = read(tmp_path, base, **changes).of("refused")
    assert [row.key for row in refused] == [key]
    assert refused[0].reason


@pytest.mark.parametrize(
    ("base", "changes", "key"),
    [
        (AXOLOTL, {"never_heard_of": 3}, "never_heard_of"),
        (AXOLOTL, {"group_by_length": True}, "group_by_length"),
        (
            AXOLOTL,
            {"datasets": [{"path": "a", "type": "alpaca", "shards": 4}]},
            "datasets[0].shards",
        ),
        (LLAMA_FACTORY, {"resume_from_checkpoint": "x"}, "resume_from_checkpoint"),
        (TRL, {"never_heard_of": "x"}, "never_heard_of"),
    ],
)
def test_what_changes_the_result_and_is_left_out_is_dropped(
    tmp_path: Path, base: dict[str, Any], changes: dict[str, Any], key: str
) -> None:
    assert [row.key for row in read(tmp_path, base, **changes).of("dropped")] == [key]


def test_a_key_that_is_off_or_null_changes_nothing(tmp_path: Path) -> None:
    off: dict[str, Any] = {
        "deepspeed": None,
        "fsdp": [],
        "never_heard_of": False,
        "lora_model_dir": None,
    }
    imported = read(tmp_path, {**AXOLOTL, **off})
    assert not imported.of("refused", "dropped")
    assert imported.values == read(tmp_path, AXOLOTL).values


@pytest.mark.parametrize(
    ("entry", "columns", "roles"),
    [
        ({"type": "chat_template"}, None, None),
        ({"type": "chat_template", "field_messages": "conversations"}, None, None),
        ({"type": "chat_template", "field_messages": "talk"}, {"messages": "talk"}, None),
        ({"type": "chat_template", "roles": {"user": ["human", "asker"]}}, None, {"asker": "user"}),
        ({"type": "completion", "field": "chapter"}, {"text": "chapter"}, None),
        (
            {"type": {"field_instruction": "q", "field_output": "a", "format": "Q: {instruction}"}},
            {"prompt": "{q} ", "completion": "a"},
            None,
        ),
    ],
)
def test_types_of_axolotl_datasets(
    tmp_path: Path, entry: dict[str, Any], columns: Any, roles: Any
) -> None:
    imported = read(tmp_path, AXOLOTL, datasets=[{"path": "d.jsonl", **entry}])
    (source,) = imported.values["data.train"]
    assert (source.get("columns"), source.get("roles")) == (columns, roles)
    assert not imported.of("refused", "dropped")


_SPOKEN = {"system": "Be short.", "chosen": "good", "rejected": "bad"}


@pytest.mark.parametrize(
    ("method", "kind", "row"),
    [
        ({"rl": "dpo"}, "chatml.intel", {**_SPOKEN, "question": "Why?"}),
        ({"rl": "dpo"}, "llama3.icr", {**_SPOKEN, "input": "Why?"}),
        ({"rl": "ipo"}, "chatml.prompt_pairs", {**_SPOKEN, "prompt": "Why?"}),
        ({"rl": "dpo"}, "chatml.argilla", {**_SPOKEN, "input": "Why?"}),
        (
            {"rl": "simpo"},
            "chatml.argilla",
            {"system": "Be short.", "instruction": "Why?", "chosen_response": "good",
             "rejected_response": "bad"},
        ),
        ({"rl": "kto"}, "llama3.ultra",
         {"system": "Be short.", "prompt": "Why?", "completion": "good", "label": True}),
        (
            {"rl": "kto"},
            "chatml.argilla_chat",
            {"completion": [{"role": "system", "content": "Be short."},
                            {"role": "user", "content": "Why?"},
                            {"role": "assistant", "content": "good"}], "label": True},
        ),
        ({"reward_model": True, "num_labels": 1}, "bradley_terry.chat_template",
         {**_SPOKEN, "input": "Why?"}),
    ],
)  # fmt: skip
def test_answers_of_axolotl_are_turns_after_their_question(
    tmp_path: Path, method: dict[str, Any], kind: str, row: dict[str, Any]
) -> None:
    file = tmp_path / "d.jsonl"
    file.write_text(json.dumps(row) + "\n")
    imported = read(tmp_path, AXOLOTL, datasets=[{"path": str(file), "type": kind}], **method)
    assert not imported.of("refused", "dropped")
    (record,) = first_records(loaded(tmp_path, imported), 1, lambda *progress: None)
    assert isinstance(record, RatedRecord | PreferenceRecord)
    good = record.text if isinstance(record, RatedRecord) else record.chosen
    turns = [*good.prompt, *good.completion]
    assert [(one["role"], one["content"]) for one in turns] == [
        ("system", "Be short."), ("user", "Why?"), ("assistant", "good"),
    ]  # fmt: skip


def test_preferences_of_axolotl_keep_the_names_of_their_roles(tmp_path: Path) -> None:
    entry = {"path": "d.jsonl", "type": "chat_template.default", "roles": {"user": ["asker"]}}
    imported = read(tmp_path, AXOLOTL, rl="dpo", datasets=[entry])
    (source,) = imported.values["data.train"]
    assert source["roles"] == {"asker": "user"}


@pytest.mark.parametrize(
    ("optimizer", "kept"),
    [("lion_32bit", {"train.betas"}), ("adafactor", set()),
     ("adamw_torch", {"train.betas", "train.epsilon"})],
)  # fmt: skip
def test_moments_are_kept_for_the_optimizers_that_have_them(
    tmp_path: Path, optimizer: str, kept: set[str]
) -> None:
    given = {"optimizer": optimizer, "adam_beta2": 0.95, "adam_epsilon": 1e-6}
    values = read(tmp_path, {**AXOLOTL, **given}).values
    assert {"train.betas", "train.epsilon"} & set(values) == kept


def test_full_fine_tuning_has_no_adapter(tmp_path: Path) -> None:
    imported = read(tmp_path, AXOLOTL, adapter="absent", unfrozen_parameters=["^lm_head", "norm"])
    assert imported.values["adapter.kind"] == "none"
    assert imported.values["model.quantize"] == "none"
    assert imported.values["train.layers"] == "(?:lm_head.*)|(?:norm.*)"


def test_without_data_for_evaluations_there_are_none(tmp_path: Path) -> None:
    imported = read(tmp_path, AXOLOTL, val_set_size=0)
    assert imported.values["eval.every"] == 0
    assert "eval.per_epoch" not in imported.values


def verdicts(imported: Imported) -> dict[str, str]:
    return {row.key: row.verdict for row in imported.rows if row.key}


@pytest.mark.parametrize(
    ("base", "none"),
    [
        (AXOLOTL, {"val_set_size": 0}),
        (LLAMA_FACTORY, {"val_size": 0}),
        (TRL, {"dataset_mixture": "absent", "dataset_name": "org/data"}),
    ],
    ids=["axolotl", "lf", "trl"],
)
def test_what_needs_evaluations_is_not_the_same_without_data_for_them(
    tmp_path: Path, base: dict[str, Any], none: dict[str, Any]
) -> None:
    wanted = {"early_stopping_patience": 3, "load_best_model_at_end": True, "eval_on_start": True}
    absent = dict.fromkeys(("eval_steps", "evals_per_epoch"), "absent")
    changes = {"eval_strategy": "epoch", **absent, **wanted, **none}
    imported = read(tmp_path, base, **changes)
    found = verdicts(imported)
    assert {found[key] for key in ("eval_strategy", "eval_on_start")} == {"no effect"}
    assert {found[key] for key in list(wanted)[:2]} == {"dropped"}
    ours = {row.ours.partition(":")[0] for row in imported.rows}
    assert {path for path in ours if "." in path} <= set(imported.values)


def test_two_names_of_one_setting_with_different_values_are_told(tmp_path: Path) -> None:
    imported = read(tmp_path, TRL, max_length=512, max_seq_length=256)
    (row,) = imported.of("dropped")
    assert (row.key, imported.values["data.max_length"]) == ("max_length", 256)
    assert "max_seq_length" in row.reason
    assert not read(tmp_path, TRL, max_length=256, max_seq_length=256).of("dropped")


@pytest.mark.parametrize(
    ("base", "unknown"),
    [(AXOLOTL, "lora_rank"), (LLAMA_FACTORY, "lora_r"), (TRL, "lora_rank")],
    ids=["axolotl", "lf", "trl"],
)
def test_the_rank_has_the_name_that_the_tool_gives_it(
    tmp_path: Path, base: dict[str, Any], unknown: str
) -> None:
    change: dict[str, Any] = {unknown: 5}
    imported = read(tmp_path, base, **change)
    assert [row.key for row in imported.of("dropped")] == [unknown]
    assert imported.values["adapter.r"] != 5


def test_default_arguments_of_trainers_drop_nothing(tmp_path: Path) -> None:
    from transformers import TrainingArguments
    from trl import DPOConfig, SFTConfig

    for kind, task in ((TrainingArguments, None), (SFTConfig, "sft"), (DPOConfig, "dpo")):
        arguments = kind(output_dir=str(tmp_path), use_cpu=True, bf16=False)
        text = arguments.to_json_string()
        imported = read_foreign(Path("arguments.json"), text, task)
        assert [row.key for row in imported.of("refused", "dropped")] == [], kind.__name__


def test_tools_are_recognized_by_their_keys() -> None:
    assert tool_of(AXOLOTL) == "axolotl"
    assert tool_of(LLAMA_FACTORY) == "LLaMA-Factory"
    assert tool_of(TRL) == "TRL"
    assert tool_of({"model": {"id": "m"}, "train": {"lr": 1}}) is None
    assert hint_of(Path("my axolotl.yml"), AXOLOTL).endswith(
        "import it with: fttui import 'my axolotl.yml' -o my.yaml"
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: 1\n", "not the configuration of a known tool"),
        ("model: {id: m}\ntrain: {lr: 1}\n", "a configuration of fttui already"),
        ("- a\n", "expected keys with values"),
        ("a: [\n", "not valid YAML"),
        (yaml.safe_dump({**AXOLOTL, "learning_rate": "fast"}), "expected a number, got fast"),
        (yaml.safe_dump({**AXOLOTL, "datasets": 5}), "a value of this axolotl configuration"),
        (yaml.safe_dump({**AXOLOTL, "learning_rate": 0, "embedding_lr": 1e-4}), "division by zero"),
    ],
)
def test_a_file_that_cannot_be_read_says_why(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read_foreign(Path("x.yaml"), text)


def test_comments_follow_their_keys(tmp_path: Path) -> None:
    text = "# fits the card\nmicro_batch_size: 2\n\nlearning_rate: 0.0002 # tuned\nx: 1\n"
    found = comments_of(text)
    assert found == {"micro_batch_size": "fits the card", "learning_rate": "tuned"}
    lines = written(read(tmp_path, AXOLOTL), "o.yml", text).splitlines()
    assert "  batch: 2  # micro_batch_size | fits the card" in lines
    assert "  lr: 0.0002  # learning_rate | tuned" in lines


@pytest.mark.parametrize(
    ("given", "four_bit", "verdict"),
    [
        (True, True, "no effect"),
        (False, True, "nearly"),
        (True, False, "dropped"),
        (False, False, "no effect"),
    ],
)
def test_experts_are_quantized_with_the_model_or_not(
    tmp_path: Path, given: bool, four_bit: bool, verdict: str
) -> None:
    changes = {"load_in_4bit": four_bit, "adapter": "qlora" if four_bit else "lora"}
    imported = read(tmp_path, {**AXOLOTL, **changes, "quantize_moe_experts": given})
    (row,) = [row for row in imported.rows if row.key == "quantize_moe_experts"]
    assert row.verdict == verdict


@pytest.mark.parametrize(("base", "key"), [(AXOLOTL, "val_set_size"), (LLAMA_FACTORY, "val_size")])
def test_a_number_of_records_becomes_a_share_and_says_so(
    tmp_path: Path, base: dict[str, Any], key: str
) -> None:
    for count in (1, 200):
        imported = read(tmp_path, {**base, key: count})
        assert imported.values["data.eval_fraction"] == 0.02
        assert key in [row.key for row in imported.of("nearly")]


@pytest.mark.parametrize(
    ("base", "changes", "verdict"),
    [
        (AXOLOTL, {"min_sample_len": 100}, "dropped"),
        (AXOLOTL, {"plugins": ["axolotl.integrations.liger.LigerPlugin"]}, "no effect"),
        (AXOLOTL, {"plugins": ["my.integrations.Own"]}, "dropped"),
        (AXOLOTL, {"s2_attention": True}, "refused"),
        (AXOLOTL, {"loss_watchdog_threshold": 5.0}, "nearly"),
        (LLAMA_FACTORY, {"split_special_tokens": True}, "dropped"),
        (LLAMA_FACTORY, {"split_special_tokens": False}, "no effect"),
        (LLAMA_FACTORY, {"default_system": "Be brief."}, "same"),
        (TRL, {"max_prompt_length": 512}, "nearly"),
        (TRL, {"model_init_kwargs": {"rope_theta": 1}}, "dropped"),
        (TRL, {"model_init_kwargs": {}}, "no effect"),
        (TRL, {"dataset_text_field": "body"}, "same"),
        (TRL, {"disable_dropout": True}, "same"),
    ],
)
def test_what_changes_the_result_is_never_without_effect(
    tmp_path: Path, base: dict[str, Any], changes: dict[str, Any], verdict: str
) -> None:
    (key,) = changes
    imported = read(tmp_path, {**base, **changes})
    assert [row.verdict for row in imported.rows if row.key == key] == [verdict]


def test_preferences_of_trl_are_learned_without_dropout(tmp_path: Path) -> None:
    assert read(tmp_path, TRL).values["adapter.dropout"] == 0.0
    assert read(tmp_path, {**TRL, "disable_dropout": False}).values["adapter.dropout"] == 0.05
    sft = read(tmp_path, TRL, **NO_METHOD)
    assert sft.values["adapter.dropout"] == 0.05
    (row,) = [row for row in sft.rows if row.ours.startswith("data.completion_only")]
    assert row.verdict == "nearly"


@pytest.mark.parametrize(
    ("base", "key"),
    [(AXOLOTL, "tokens"), (LLAMA_FACTORY, "add_tokens")],
    ids=["axolotl", "factory"],
)
def test_new_tokens_stay_ordinary_tokens(tmp_path: Path, base: dict[str, Any], key: str) -> None:
    found = read(tmp_path, base, None, **{key: ["alpha", "beta"]})
    assert found.values["model.add_tokens"] == [{"token": "alpha"}, {"token": "beta"}]
    assert "data.special_tokens" not in found.values


@pytest.mark.parametrize(
    ("entry", "paths"),
    [
        ({"path": "org/d", "data_files": ["x/a.json", "b.json"]},
         ["hf://datasets/org/d/x/a.json", "hf://datasets/org/d/b.json"]),
        ({"path": "json", "data_files": "local.jsonl"}, ["local.jsonl"]),
        ({"path": "data/mine", "data_files": ["data/mine/a.jsonl"]}, ["data/mine/a.jsonl"]),
        ({"path": "./mine", "data_files": ["a.jsonl"], "ds_type": "json"}, ["a.jsonl"]),
        ({"path": "org/d", "name": ["en", "de"]}, ["org/d:en", "org/d:de"]),
    ],
)  # fmt: skip
def test_files_and_configurations_of_a_dataset_are_sources(
    tmp_path: Path, entry: dict[str, Any], paths: list[str]
) -> None:
    imported = read(tmp_path, AXOLOTL, datasets=[{"type": "alpaca", **entry}])
    assert not imported.of("refused", "dropped")
    assert [one.path for one in loaded(tmp_path, imported).data.sources] == paths


def test_tables_of_llama_factory_on_the_hub_and_in_the_file(tmp_path: Path) -> None:
    remote = read(tmp_path, LLAMA_FACTORY, dataset="second", dataset_dir="REMOTE:org/demo")
    assert not remote.of("refused", "dropped")
    assert remote.values["data.train"][0]["path"] == "hf://datasets/org/demo/chats.json"
    assert "dataset_dir" in [row.key for row in remote.of("nearly")]
    online = read(tmp_path, LLAMA_FACTORY, dataset="org/one", dataset_dir="ONLINE")
    assert online.values["data.train"] == [{"path": "org/one"}]
    inline = {"mine": {"file_name": "m.json", "columns": {"prompt": "q", "response": "a"}}}
    found = read(tmp_path, LLAMA_FACTORY, dataset="mine", dataset_dir=inline)
    assert found.values["data.train"][0]["path"] == "data/m.json"
    part = {"mine": {"hf_hub_url": "org/d", "folder": "en"}}
    missed = read(tmp_path, LLAMA_FACTORY, dataset="mine", dataset_dir=part)
    assert [row.key for row in missed.of("dropped")] == ["dataset: mine.folder"]


@pytest.mark.parametrize(
    ("kind", "prompts", "answer"),
    [
        ("alpaca_w_system.load_open_orca",
         ["### System:\n{system_prompt}\n### Human:\n{question}\n### Assistant:\n",
          "### Human:\n{question}\n### Assistant:\n"], "response"),
        ("context_qa.load_v2", "Context: {context}\nQuestion: {question}\n", "Answer: {answer}"),
        ("summarizetldr",
         "USER: Summarize the following article as a TL;DR.\n{article}\nASSISTANT:", "summary"),
        ("alpaca_chat.load_no_prompt",
         ["USER: {instruction}\n{input}\nASSISTANT:", "USER: {instruction}\nASSISTANT:"], "output"),
    ],
)  # fmt: skip
def test_types_with_columns_of_their_own(
    tmp_path: Path, kind: str, prompts: Any, answer: str
) -> None:
    imported = read(tmp_path, AXOLOTL, datasets=[{"path": "a.jsonl", "type": kind}])
    assert not imported.of("refused", "dropped")
    (source,) = loaded(tmp_path, imported).data.sources
    assert source.columns == {"prompt": prompts, "completion": answer}


def test_a_style_may_follow_the_type_or_be_a_key(tmp_path: Path) -> None:
    named = read(tmp_path, AXOLOTL, datasets=[{"path": "a", "type": "gpteacher:chatml"}])
    key = {"path": "a", "type": "alpaca_chat.load_qa", "conversation": "chatml"}
    for found in (named, read(tmp_path, AXOLOTL, datasets=[key])):
        prompts = found.values["data.train"][0]["columns"]["prompt"]
        assert "<|im_start|>user\n" in (prompts if isinstance(prompts, str) else prompts[0])
    unknown = read(tmp_path, AXOLOTL, datasets=[{"path": "a", "type": "alpaca:unheard"}])
    assert [row.key for row in unknown.of("refused")] == ["datasets[0].type"]


def test_an_entry_may_name_its_template_its_roles_and_its_tools(tmp_path: Path) -> None:
    entry = {"path": "a", "type": "sharegpt", "conversation": "chatml", "field_human": "asker",
             "field_model": "answerer", "field_tools": "apis", "field_system": "rules",
             "roles_to_train": ["assistant", "gpt"]}  # fmt: skip
    imported = read(tmp_path, AXOLOTL, datasets=[entry])
    assert not imported.of("refused", "dropped")
    config = loaded(tmp_path, imported)
    (source,) = config.data.sources
    assert source.roles == {"asker": "user", "answerer": "assistant"}
    assert source.columns == {"tools": "apis", "system": "rules"}
    assert "im_start" in (config.data.template or "")
    speakers = {"message_property_mappings": {"role": "speaker", "content": "text"}}
    named = read(tmp_path, AXOLOTL, datasets=[{"path": "a", "type": "chat_template", **speakers}])
    assert not named.of("refused")


def test_known_keys_of_messages_are_those_that_are_read() -> None:
    assert set(MESSAGE_KEYS["role"]) <= set(ROLE_KEYS)
    assert set(MESSAGE_KEYS["content"]) <= set(CONTENT_KEYS)


def test_answers_that_are_compared_as_they_are(tmp_path: Path) -> None:
    own = {"field_prompt": "q", "prompt_format": "[{system}] {prompt}\n", "field_chosen": "good"}
    found = read(tmp_path, AXOLOTL, rl="dpo", datasets=[{"path": "a", "type": own}])
    columns = found.values["data.train"][0]["columns"]
    assert columns == {"prompt": "[{system}] {q}\n", "chosen": "good"}
    plain = read(tmp_path, AXOLOTL, rl="dpo", datasets=[{"path": "a", "type": "passthrough"}])
    assert not plain.of("refused", "dropped")
    assert plain.values["data.train"] == [{"path": "a"}]


def test_data_for_evaluations_keep_columns_of_their_own(tmp_path: Path) -> None:
    chats = {"path": "a.jsonl", "type": "chat_template", "field_messages": "talk"}
    test = {"path": "b.jsonl", "type": "chat_template", "field_messages": "turns", "split": "dev"}
    data = loaded(tmp_path, read(tmp_path, AXOLOTL, datasets=[chats], test_datasets=[test])).data
    assert (data.eval, data.eval_split, data.columns) == ("b.jsonl", "dev", {"messages": "turns"})
    assert data.sources[0].columns == {"messages": "talk"}
    other = read(tmp_path, LLAMA_FACTORY, dataset="first", eval_dataset="second", val_size="absent")
    assert loaded(tmp_path, other).data.columns == {"messages": "talk", "system": "rules"}
    assert other.values["data.eval_split"] == "train"


@pytest.mark.parametrize(
    ("base", "changes", "expected"),
    [
        (TRL, {"optim_args": "eps=1e-6"}, {"train.epsilon": 1e-6}),
        (TRL, {"optim_args": {"eps": 1e-7, "betas": [0.8, 0.9]}}, {"train.betas": [0.8, 0.9]}),
        (AXOLOTL, {"bf16": "auto", "fp16": True}, {"model.precision": "fp16"}),
        (AXOLOTL, {"gradient_accumulation_steps": "absent", "batch_size": 8},
         {"train.accumulate": 4, "train.batch": 2}),
        (AXOLOTL, {"batch_size": 8}, {"train.accumulate": 4}),
        (AXOLOTL, {"cosine_min_lr_ratio": 0.1}, {"train.lr_floor": 0.1}),
        (AXOLOTL, {"wandb_of_a_later_version": "x", "hub_new": 1}, {}),
        (AXOLOTL, {"resume_from_checkpoint": ""}, {}),
    ],
)  # fmt: skip
def test_what_other_versions_write_is_read(
    tmp_path: Path, base: dict[str, Any], changes: dict[str, Any], expected: dict[str, Any]
) -> None:
    imported = read(tmp_path, {**base, **changes})
    assert not imported.of("refused", "dropped")
    assert {key: imported.values[key] for key in expected} == expected
    loaded(tmp_path, imported)


def test_a_file_that_merges_and_the_notes_of_a_tracker_are_named(tmp_path: Path) -> None:
    merge = read(tmp_path, LLAMA_FACTORY, export_dir="merged", dataset="absent")
    assert any("fttui export" in row.reason for row in merge.of("refused"))
    notes = {key: {"desc": None, "value": 1} for key in TRL}
    assert tool_of(notes) is None


def reasons(imported: Imported) -> dict[str, str]:
    return {row.key: row.reason for row in imported.of("dropped", "nearly")}


def test_a_misspelled_key_is_dropped_with_the_one_that_was_meant(tmp_path: Path) -> None:
    axolotl = read(tmp_path, AXOLOTL, lr_scheduler="absent", lr_schedular="cosine", zzz=1)
    assert reasons(axolotl)["lr_schedular"].endswith("; did you mean lr_scheduler?")
    assert reasons(axolotl)["zzz"] == "fttui does not know this key"
    factory = read(tmp_path, LLAMA_FACTORY, warmup_ratio="absent", warmup_ration=0.1)
    assert reasons(factory)["warmup_ration"].endswith("; did you mean warmup_ratio?")


@pytest.mark.parametrize("formatting", ["alpaca", "sharegpt"])
def test_unknown_keys_of_an_entry_of_the_table_are_dropped(tmp_path: Path, formatting: str) -> None:
    entry = {"file_name": "m.json", "file_sha1": "", "formatting": formatting, "odd": 1,
             "columns": {"promt": "q", "system": "rules"}, "tags": {"user_tags": "me"}}  # fmt: skip
    found = read(tmp_path, LLAMA_FACTORY, dataset="mine", dataset_dir={"mine": entry})
    unknown = {row.key: row.reason for row in found.of("dropped")}
    assert unknown == {
        "dataset: mine.odd": "fttui does not know this key",
        "dataset: mine.columns.promt": "fttui does not know this key; did you mean prompt?",
        "dataset: mine.tags.user_tags": "fttui does not know this key; did you mean user_tag?",
    }
    assert found.values["data.train"][0]["columns"] == {"system": "rules"}


def test_another_revision_of_a_dataset_is_dropped(tmp_path: Path) -> None:
    data = {"path": "org/a", "type": "alpaca"}
    found = read(tmp_path, AXOLOTL, datasets=[{**data, "revision": "abc"}])
    assert reasons(found)["datasets[0].revision"].startswith("the newest revision of the dataset")
    newest = read(tmp_path, AXOLOTL, datasets=[{**data, "revision": "main"}])
    assert "datasets[0].revision" not in reasons(newest)


def test_all_files_of_a_folder_in_the_table_are_read(tmp_path: Path) -> None:
    found = read(
        tmp_path, LLAMA_FACTORY, dataset="mine", dataset_dir={"mine": {"file_name": "parts"}}
    )
    assert found.values["data.train"][0]["path"].endswith("/parts/*")


def test_keys_of_a_type_that_are_not_used_are_told(tmp_path: Path) -> None:
    kind = {"field_outptu": "a", "format": "Q: {instruction}", "system_format": "{system}"}
    found = read(tmp_path, AXOLOTL, datasets=[{"path": "a", "type": kind}])
    assert reasons(found)["datasets[0].type.field_outptu"].endswith("did you mean field_output?")
    assert "no_input_format" in reasons(found)["datasets[0].type"]
    rated = read(
        tmp_path, AXOLOTL, rl="dpo", datasets=[{"path": "a", "type": {"chosen_forma": "x"}}]
    )
    assert "chosen_format?" in reasons(rated)["datasets[0].type.chosen_forma"]
