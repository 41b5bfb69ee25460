from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from fttui.engine.config.checks import (
    Problem,
    check_config,
    check_hardware,
    check_model,
    check_sources,
    require,
)
from fttui.engine.config.memory.hardware import Device, Hardware
from fttui.engine.config.schema import RunConfig
from fttui.engine.errors import ConfigError

CPU = Hardware(kind="cpu", host_total_bytes=8 << 30, host_free_bytes=4 << 30, processors=2)
BASE: dict[str, dict[str, Any]] = {
    "model": {"id": "m"},
    "data": {"train": "d.jsonl"},
    "train": {"steps": 10, "batch": 2},
}
STREAMED = {"data": {"streaming": True, "eval_fraction": 0}}
PAIRS = {"task": "contrastive", "contrastive": {"kind": "infonce", "hard_negatives": 0}}
COSENT = {"task": "contrastive", "contrastive": {"kind": "cosent"}}
COSINE = {"task": "contrastive", "contrastive": {"kind": "cosine"}}


def gpu(*, bf16=True, count=1, flash=False):
    device = Device(name="Card", total_bytes=6 << 30, free_bytes=5 << 30, bf16=bf16)
    return Hardware(
        kind="cuda",
        host_total_bytes=8 << 30,
        host_free_bytes=4 << 30,
        devices=(device,) * count,
        flash_attention=flash,
    )


def config(*changes):
    """The base configuration with sections merged over it."""
    merged: dict[str, Any] = {key: dict(value) for key, value in BASE.items()}
    for change in changes:
        for key, value in change.items():
            merged[key] = {**merged.get(key, {}), **value} if isinstance(value, dict) else value
    return msgspec.convert(merged, RunConfig)


def keys(problems):
    return [problem.key for problem in problems]


@pytest.mark.parametrize(
    "changes",
    [
        (),
        (PAIRS,),
        (PAIRS, {"data": {"train": "stdlib:pairs"}}),
        (PAIRS, {"data": {"train": "stdlib:pairs", "eval": "stdlib:pairs"}}),
        (PAIRS, {"train": {"batch": 1, "devices": 2}}),
        (PAIRS, {"train": {"batch": 1}, "contrastive": {"hard_negatives": 1}}),
        (PAIRS, {"train": {"batch": 1, "accumulate": 2}}),
        (PAIRS, {"eval": {"batch": 1}}),
        ({"task": "contrastive", "contrastive": {"kind": "pairwise", "in_batch": False}},),
        ({"contrastive": {"kind": "simctg"}},),
        (COSENT, {"contrastive": {"learn_temperature": True}}),
        (COSENT, {"checkpoint": {"best": "spearman"}, "eval": {"every": 5}}),
        (COSINE, {"train": {"batch": 1, "accumulate": 1}}),
        (COSINE, {"contrastive": {"score_range": [0, 5]}}),
        ({"task": "dpo", "preference": {"loss": "robust", "label_smoothing": 0.1}},),
        ({"task": "kto", "preference": {"desirable_weight": 2.0}, "data": {"format": "rated"}},),
        ({"task": "dpo", "eval": {"every": 1}, "checkpoint": {"best": "reward_margin"}},),
        ({"data": {"eval": "org/set", "train": "org/set"}},),
        (
            {
                "adapter": {"modules_to_save": ["embed_tokens"]},
                "train": {"lr_ratios": {"embeddings": 0.1}},
            },
        ),
        ({"adapter": {"modules_to_save": ["embed_tokens"]}, "train": {"memory": "plain"}},),
        ({"guard": {"nonfinite": "rollback"}, "checkpoint": {"every": 0}},),
    ],
)
def test_sound_configurations_pass(changes):
    assert check_config(config(*changes)) == []


@pytest.mark.parametrize(
    ("changes", "key", "next_step"),
    [
        (({"train": {"steps": None}},), "train.steps", "give one"),
        (
            ({"adapter": {"start": "folder", "merge_first": True, "init": "loftq"}},),
            "adapter.init",
            "with --merged",
        ),
        (({"train": {"epochs": 1.0}},), "train.steps", "keep one"),
        (({"task": "contrastive"},), "contrastive.kind", "infonce"),
        (
            ({"task": "contrastive", "contrastive": {"kind": "simctg"}},),
            "contrastive.kind",
            "task: sft",
        ),
        (({"contrastive": {"kind": "infonce"}},), "contrastive.kind", "simctg"),
        (({"contrastive": {"kind": "cosent"}},), "contrastive.kind", "simctg"),
        ((STREAMED, {"data": {"dedup": "exact"}}), "data.dedup", "streaming: false"),
        (
            (STREAMED, {"eval": {"per_epoch": 2}, "data": {"eval": "a/b"}}),
            "eval.per_epoch",
            "every",
        ),
        ((STREAMED, {"checkpoint": {"per_epoch": 1}}), "checkpoint.per_epoch", "every"),
        (({"train": {"betas": [0.9, 0.95], "optimizer": "sgd"}},), "train.betas", "sgd"),
        (({"train": {"epsilon": 1e-6, "optimizer": "lion"}},), "train.epsilon", "lion"),
        (({"train": {"momentum": 0.9}},), "train.momentum", "adamw does not have"),
        (({"train": {"betas": [0.9, 0.95], "optimizer": "adan"}},), "train.betas", "adan"),
        (({"train": {"optimizer": "galore"}},), "train.optimizer", "low rank already"),
        (
            (
                {
                    "train": {"optimizer": "apollo", "devices": 2},
                    "adapter": {"kind": "none"},
                    "model": {"quantize": "none"},
                },
            ),
            "train.optimizer",
            "drift apart; set train.devices: 1",
        ),
        (
            (
                {
                    "train": {"optimizer": "galore", "nodes": 2},
                    "adapter": {"kind": "none"},
                    "model": {"quantize": "none"},
                },
            ),
            "train.optimizer",
            "drift apart; set train.nodes: 1",
        ),
        (({"train": {"projection": {"rank": 8}}},), "train.projection", "projects no gradients"),
        (({"train": {"sam": {"rho": 0.1}}},), "train.sam", "optimizer: sam, or remove it"),
        (({"train": {"sophia": {"every": 5}}},), "train.sophia", "optimizer is adamw"),
        (
            ({"train": {"optimizer": "sam", "sam": {"base": "lion"}, "epsilon": 1e-6}},),
            "train.epsilon",
            "the optimizer lion does not have",
        ),
        (({"task": "dpo", "train": {"optimizer": "sophia"}},), "train.optimizer", "another loss"),
        (
            ({"train": {"optimizer": "sam", "strategy": "fsdp", "devices": 2}},),
            "train.optimizer",
            "second pass needs whole weights",
        ),
        (({"train": {"schedule": "exponential"}},), "train.lr_floor", "never reaches"),
        (({"train": {"schedule": "step", "lr_floor": 0.1}},), "train.lr_floor", "step does not"),
        (({"train": {"schedule_gamma": 0.5}},), "train.schedule_gamma", "schedule: step"),
        (({"train": {"schedule_power": 3}},), "train.schedule_power", "schedule: polynomial"),
        (
            ({"train": {"lr_ratios": {"patterns": {"(": 2}}}},),
            "train.lr_ratios.patterns",
            "not a regular expression",
        ),
        (({"data": {"columns": {"prompt": []}}},), "data.columns", "empty list"),
        (
            (COSENT, {"train": {"batch": 1, "accumulate": 1}}),
            "train.batch",
            "kind: cosine, which needs no other pairs",
        ),
        (
            (COSENT, {"contrastive": {"score_range": [0, 5]}}),
            "contrastive.score_range",
            "only the order",
        ),
        (
            (PAIRS, {"contrastive": {"score_range": [0, 5]}}),
            "contrastive.score_range",
            "infonce does not use it",
        ),
        (
            (COSINE, {"contrastive": {"score_range": [5, 0]}}),
            "contrastive.score_range",
            "lowest score first",
        ),
        ((COSENT, {"contrastive": {"symmetric": True}}), "contrastive.symmetric", "infonce"),
        ((COSENT, {"contrastive": {"hard_negatives": 2}}), "contrastive.hard_negatives", "remove"),
        ((COSENT, {"contrastive": {"mask_margin": 0.1}}), "contrastive.mask_margin", "remove"),
        (
            (COSINE, {"contrastive": {"learn_temperature": True}}),
            "contrastive.learn_temperature",
            "remove",
        ),
        (
            (COSENT, {"checkpoint": {"best": "mrr"}, "eval": {"every": 5}}),
            "checkpoint.best",
            "spearman",
        ),
        ((PAIRS, {"data": {"format": "text"}}), "data.format", "data.format: pairs"),
        (({"data": {"format": "pairs"}},), "task", "task: contrastive"),
        (({"data": {"train": "stdlib:pairs"}},), "task", "task: contrastive"),
        ((PAIRS, {"train": {"batch": 1, "accumulate": 1}}), "train.batch", "to 2 or more"),
        (
            (PAIRS, {"train": {"batch": 1}, "contrastive": {"cross_accumulation": "off"}}),
            "contrastive.cross_accumulation",
            "set contrastive.cross_accumulation: on",
        ),
        (
            (
                PAIRS,
                {"train": {"batch": 1, "accumulate": 1, "devices": 2}},
                {"contrastive": {"cross_device": False}},
            ),
            "train.batch",
            "hard_negatives to 1",
        ),
        (
            (PAIRS, {"contrastive": {"in_batch": False}}),
            "contrastive.in_batch",
            "set contrastive.in_batch: true",
        ),
        (
            (PAIRS, {"contrastive": {"temperature_bounds": [0.5, 0.1]}}),
            "contrastive.temperature_bounds",
            "lower bound first",
        ),
        (
            (PAIRS, {"contrastive": {"learn_temperature": True, "temperature": 0.005}}),
            "contrastive.temperature",
            "in this range",
        ),
        ((PAIRS, {"contrastive": {"weight": 0, "ce_weight": 0}}), "contrastive.weight", "raise"),
        (({"contrastive": {"ce_weight": 0}},), "contrastive.ce_weight", "ce_weight: 1"),
        (({"adapter": {"targets": []}},), "adapter.targets", "all-linear"),
        (
            ({"checkpoint": {"best": "mrr"}, "eval": {"every": 5}},),
            "checkpoint.best",
            "choose loss, perplexity",
        ),
        (
            (PAIRS, {"checkpoint": {"best": "triplet_accuracy"}, "eval": {"every": 5}}),
            "checkpoint.best",
            "does not measure",
        ),
        (
            ({"train": {"early_stop": {"patience": 2}}},),
            "train.early_stop.metric",
            "set eval.every",
        ),
        (({"data": {"eval_fraction": 1}},), "data.eval_fraction", "lower it"),
        (({"data": {"eval_fraction": 0}, "eval": {"every": 5}},), "eval.every", "data.eval"),
        (({"data": {"eval": "d.jsonl"}},), "data.eval", "eval_fraction"),
        (({"train": {"schedule": "constant", "lr_floor": 0.1}},), "train.lr_floor", "cosine"),
        (
            ({"train": {"lr_ratios": {"embeddings": 0.1}}},),
            "train.lr_ratios.embeddings",
            "modules_to_save",
        ),
        (
            ({"adapter": {"modules_to_save": ["lm_head"]}, "train": {"memory": "lean"}},),
            "adapter.modules_to_save",
            "memory: plain",
        ),
        (
            ({"data": {"special_tokens": ["<a>"]}, "train": {"memory": "lean"}},),
            "data.special_tokens",
            "memory: plain",
        ),
        (
            ({"model": {"add_tokens": [{"token": "a "}]}},),
            "model.add_tokens",
            "white space",
        ),
        (
            (
                {
                    "data": {"special_tokens": ["<a>"]},
                    "model": {"add_tokens": [{"token": "<a>"}]},
                },
            ),
            "data.special_tokens",
            "listed twice",
        ),
        (
            ({"model": {"add_tokens": [{"token": "a", "description": " "}]}},),
            "model.add_tokens",
            "describe it",
        ),
        (({"data": {"special_tokens": ["<a>", "<a>"]}},), "data.special_tokens", "listed twice"),
        (
            (
                {
                    "data": {"special_tokens": ["<a>"]},
                    "model": {"add_tokens": [{"token": "<b>"}, {"token": "<b>"}]},
                },
            ),
            "model.add_tokens",
            "<b> is listed twice",
        ),
        (({"data": {"special_tokens": ["<a>", " <b>"]}},), "data.special_tokens", "white space"),
        (({"data": {"special_tokens": [""]}},), "data.special_tokens", "white space"),
        ((STREAMED, {"train": {"steps": None, "epochs": 1}}), "train.epochs", "train.steps"),
        ((STREAMED, {"data": {"eval_fraction": 0.1}}), "data.eval_fraction", "data.eval"),
        ((STREAMED, {"data": {"packing": True}}), "data.packing", "data.streaming"),
        ((STREAMED, {"data": {"train": "d.json"}}), "data.streaming", ".jsonl"),
        ((STREAMED, {"data": {"train": [{"path": "a"}, {"path": "b"}]}}), "data.train", "weight"),
        (({"data": {"train": []}},), "data.train", "empty"),
        (
            ({"data": {"train": [{"path": "a", "weight": 1}, {"path": "b"}]}},),
            "data.train",
            "1 of 2 sources have a weight",
        ),
        (({"data": {"train": [{"path": "a"}, {"path": "a"}]}},), "data.train", "listed twice"),
        (
            ({"data": {"train": [{"path": "stdlib:pairs"}, {"path": "a"}]}}, PAIRS),
            "data.train",
            "cannot be mixed",
        ),
        (
            (PAIRS, {"train": {"lr_ratios": {"temperature": 0.1}}}),
            "train.lr_ratios.temperature",
            "learn_temperature",
        ),
        (
            (PAIRS, {"train": {"label_smoothing": 0.1}, "contrastive": {"ce_weight": 0}}),
            "train.label_smoothing",
            "ce_weight",
        ),
        (
            ({"train": {"devices": 2, "memory": "streamed"}, "adapter": {"dora": True}},),
            "train.memory",
            "reads the weights outside of their layers; set lean",
        ),
        (
            ({"train": {"fast": "on", "memory": "streamed"}},),
            "train.fast",
            "streamed copies the weights of each layer to the device; set train.fast: auto",
        ),
        (
            ({"adapter": {"dora": True}, "train": {"memory": "streamed"}},),
            "train.memory",
            "dora reads the weights outside of their layers; set lean",
        ),
        (
            ({"model": {"quantize": "none"}, "train": {"memory": "streamed"}},),
            "train.memory",
            "got streamed, which keeps the head in NF4",
        ),
        (
            ({"train": {"label_smoothing": 0.1, "memory": "lean"}},),
            "train.label_smoothing",
            "memory: plain",
        ),
        (
            (PAIRS, {"train": {"router_aux_loss": 0.1}}),
            "train.router_aux_loss",
            "has no load balancing loss; remove it",
        ),
        (
            ({"train": {"fast": "on", "activations": "host"}},),
            "train.fast",
            "got on, but train.activations are on the host; set train.fast: auto",
        ),
        (
            ({"train": {"fast": "on"}, "model": {"attention": "eager"}},),
            "train.fast",
            "model.attention: eager cannot be captured in a graph",
        ),
        (
            ({"guard": {"nonfinite": "rollback"}, "checkpoint": {"every": 0, "at_start": False}},),
            "guard.nonfinite",
            "at_start: true",
        ),
    ],
)
def test_contradictions_name_key_and_next_step(changes, key, next_step):
    (problem,) = check_config(config(*changes))
    assert problem.key == key
    assert next_step in problem.text


@pytest.mark.parametrize(
    ("change", "hardware"),
    [
        ({}, CPU),
        ({"model": {"precision": "bf16"}}, CPU),
        ({"model": {"precision": "bf16"}}, gpu()),
        ({"model": {"precision": "fp16"}}, gpu(bf16=False)),
        ({"train": {"devices": 2}}, CPU),
        ({"train": {"devices": 2}}, gpu(count=2)),
        ({"model": {"attention": "flash_attention_2"}}, gpu(flash=True)),
        ({"train": {"fast": "on"}}, gpu()),
        ({"train": {"fast": "static"}}, CPU),
    ],
)
def test_hardware_that_suffices(change, hardware):
    assert check_hardware(config(change), hardware) == []


@pytest.mark.parametrize(
    ("change", "hardware", "key", "next_step"),
    [
        ({"model": {"precision": "fp16"}}, CPU, "model.precision", "set auto or fp32"),
        ({"model": {"precision": "bf16"}}, gpu(bf16=False), "model.precision", "set fp16"),
        (
            {"train": {"adapter_precision": "bf16"}},
            gpu(bf16=False),
            "train.adapter_precision",
            "fp32",
        ),
        ({"train": {"devices": 3}}, gpu(count=2), "train.devices", "CUDA_VISIBLE_DEVICES"),
        ({"train": {"devices": 3}}, CPU, "train.devices", "2 CPU cores"),
        ({"model": {"attention": "flash_attention_2"}}, CPU, "model.attention", "sdpa"),
        ({"model": {"attention": "flash_attention_2"}}, gpu(), "model.attention", "pip install"),
        ({"train": {"fast": "on"}}, CPU, "train.fast", "this is cpu; set train.fast: auto"),
    ],
)
def test_hardware_that_does_not(change, hardware, key, next_step):
    (problem,) = check_hardware(config(change), hardware)
    assert problem.key == key
    assert next_step in problem.text


def test_one_old_card_among_new_ones_decides():
    new, old = gpu().devices[0], Device("GTX 1080", 8 << 30, 8 << 30, bf16=False)
    mixed = Hardware(kind="cuda", host_total_bytes=1, host_free_bytes=1, devices=(new, old))
    (problem,) = check_hardware(config({"model": {"precision": "bf16"}}), mixed)
    assert "GTX 1080" in problem.text


def test_require_reports_all_with_their_places():
    problems = [Problem("train.lr", "too high"), Problem("eval.every", "too often")]
    with pytest.raises(ConfigError) as caught:
        require(problems, {"train.lr": "c.yaml:3"}, "c.yaml")
    assert str(caught.value).splitlines() == [
        "c.yaml:3: train.lr: too high",
        "c.yaml: eval.every: too often",
    ]
    require([], {}, "c.yaml")


def test_missing_data_files_are_found_without_reading(tmp_path):
    present = tmp_path / "train.jsonl"
    present.write_text("{}")
    absent = tmp_path / "trian.jsonl"
    (problem,) = check_sources(config({"data": {"train": str(present), "eval": str(absent)}}))
    assert problem.key == "data.eval"
    assert f"did you mean {present}?" in problem.text
    assert check_sources(config({"data": {"train": "org/set", "eval": "stdlib:pairs"}})) == []


def test_a_folder_with_the_name_of_a_file_is_reported_as_one(tmp_path):
    folder = tmp_path / "rows.jsonl"
    folder.mkdir()
    (problem,) = check_sources(config({"data": {"train": str(folder)}}))
    assert problem.text.startswith(f"{folder}: a folder")


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"task": "sft", "preference": {"beta": 0.2}}, "preference"),
        ({"task": "dpo", "contrastive": {"kind": "infonce"}}, "contrastive.kind"),
        ({"task": "dpo", "data": {"train": "stdlib:pairs"}}, "task"),
        ({"task": "dpo", "data": {"format": "rated"}}, "data.format"),
        ({"task": "kto", "data": {"format": "messages"}}, "data.format"),
        ({"task": "dpo", "data": {"completion_only": False}}, "data.completion_only"),
        ({"task": "dpo", "data": {"packing": True}}, "data.packing"),
        ({"task": "kto", "data": {"streaming": True, "eval_fraction": 0}}, "data.streaming"),
        ({"task": "dpo", "preference": {"desirable_weight": 2}}, "preference.desirable_weight"),
        (
            {"task": "dpo", "preference": {"loss": "ipo", "label_smoothing": 0.1}},
            "preference.label_smoothing",
        ),
        ({"task": "kto", "preference": {"loss": "hinge"}}, "preference.loss"),
        ({"task": "kto", "preference": {"ld_alpha": 0.5}}, "preference.ld_alpha"),
        (
            {"task": "dpo", "preference": {"rated_loss": "apo_zero_unpaired"}},
            "preference.rated_loss",
        ),
        ({"task": "dpo", "preference": {"loss": {}}}, "preference.loss"),
        ({"task": "dpo", "preference": {"loss": {"sigmoid": 1, "cpo": 1}}}, "preference.loss"),
        ({"task": "dpo", "preference": {"loss": "exo_pair"}}, "preference.label_smoothing"),
        (
            {"task": "dpo", "preference": {"loss": "apo_zero", "f_divergence": "forward_kl"}},
            "preference.f_divergence",
        ),
        (
            {
                "task": "dpo",
                "preference": {"loss": {"ipo": 1, "aot": 1}, "f_divergence": "forward_kl"},
            },
            "preference.f_divergence",
        ),
        ({"task": "dpo", "preference": {"f_alpha": 0.7}}, "preference.f_alpha"),
        ({"task": "dpo", "preference": {"discopop_tau": 0.7}}, "preference.discopop_tau"),
        ({"task": "dpo", "preference": {"reward_alpha": 0.7}}, "preference.reward_alpha"),
        (
            {"task": "dpo", "preference": {"loss": "orpo", "ld_alpha": 0.7}},
            "preference.ld_alpha",
        ),
        (
            {
                "task": "dpo",
                "preference": {"loss": "aot"},
                "train": {"batch": 1, "accumulate": 1},
            },
            "preference.loss",
        ),
        (
            {"task": "dpo", "preference": {"loss": "orpo", "label_smoothing": 0.1}},
            "preference.label_smoothing",
        ),
        ({"task": "dpo", "preference": {"loss": "cpo", "gamma": 1}}, "preference.gamma"),
        ({"task": "kto", "preference": {"gamma": 1}}, "preference.gamma"),
        ({"task": "dpo", "reward": {"centering": 0.1}}, "reward"),
        ({"task": "reward", "preference": {"beta": 0.2}}, "preference"),
        ({"task": "reward", "eval": {"samples": ["Hi"]}}, "eval.samples"),
        ({"task": "reward", "adapter": {"start": "folder"}}, "adapter.start"),
        ({"task": "reward", "data": {"completion_only": False}}, "data.completion_only"),
        ({"task": "reward", "data": {"packing": True}}, "data.packing"),
        ({"task": "reward", "train": {"label_smoothing": 0.1}}, "train.label_smoothing"),
        ({"task": "reward", "train": {"router_aux_loss": 0.1}}, "train.router_aux_loss"),
        ({"task": "reward", "contrastive": {"kind": "infonce"}}, "contrastive.kind"),
        ({"task": "dpo", "preference": {"ce_tokens": "all"}}, "preference.ce_tokens"),
        (
            {"task": "dpo", "preference": {"loss": "simpo", "ce_tokens": "completion"}},
            "preference.ce_tokens",
        ),
        (
            {"task": "kto", "preference": {"desirable_weight": 0, "undesirable_weight": 0}},
            "preference.desirable_weight",
        ),
        (
            {"task": "dpo", "checkpoint": {"best": "perplexity"}, "eval": {"every": 1}},
            "checkpoint.best",
        ),
    ],
)
def test_preference_tasks_refuse_settings_they_cannot_use(change, key):
    assert keys(check_config(config(change))) == [key]


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"task": "dpo"}, "train.focal"),
        ({"task": "reward"}, "train.focal"),
        ({"train": {"label_smoothing": 0.1}}, "train.focal"),
        (
            {"task": "contrastive", "contrastive": {"kind": "infonce", "ce_weight": 0}},
            "train.focal",
        ),
    ],
)
def test_the_focal_factor_is_refused_where_no_token_is_weighed(change, key):
    found = check_config(config({**change, "train": {"focal": 2, **change.get("train", {})}}))
    assert keys(found) == [key]


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"contrastive": {"dimensions": [64]}}, "contrastive.dimensions"),
        (
            {"task": "contrastive", "contrastive": {"kind": "infonce", "dimensions": [64, 64]}},
            "contrastive.dimensions",
        ),
        (
            {"task": "contrastive", "contrastive": {"kind": "triplet", "learn_temperature": True}},
            "contrastive.learn_temperature",
        ),
    ],
)
def test_settings_of_vectors_that_no_loss_uses_are_refused(change, key):
    assert keys(check_config(config(change))) == [key]


def test_more_whole_layers_than_there_are_are_refused():
    all_of_them = config({"train": {"activation_checkpointing": True, "whole_layers": 16}})
    assert check_model(all_of_them, layers=16) == []
    (problem,) = check_model(all_of_them, layers=15)
    assert problem.key == "train.whole_layers"
    assert "got 16, but the model has 15 layers; lower it" in problem.text


def test_sources_in_the_home_folder_and_patterns_are_found(tmp_path, monkeypatch):
    (tmp_path / "train.jsonl").write_text("{}")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for source in ("~/train.jsonl", "~/*.jsonl", "*.jsonl", str(tmp_path)):
        assert check_sources(config({"data": {"train": source}})) == []
    for source in ("~/trian.jsonl", "~/*.csv", "./none", "~/none"):
        (problem,) = check_sources(config({"data": {"train": source}}))
        assert problem.text.startswith(str(Path(source).expanduser()))


@pytest.mark.parametrize(
    ("roles", "meant"),
    [
        ({"bob": "asistant"}, "assistant"),
        ({"bob": "Assitant"}, "assistant"),
        ({"a": "user", "bob": "usr"}, "user"),
        ({"bob": "assistant", "ann": "assistant"}, None),
        ({"bob": "Assistant", "ann": "gpt"}, None),
        ({"tools": "tools", "bob": "critic", "*": "*"}, None),
    ],
)
def test_a_misspelt_role_is_named(roles, meant):
    own = {"path": "d.jsonl", "roles": roles}
    for data in ({"train": "d.jsonl", "roles": roles}, {"train": [own]}):
        found = [one for one in check_config(config({"data": data})) if one.key == "data.roles"]
        assert [f"did you mean {meant}?" in one.text for one in found] == [True] * bool(meant)
