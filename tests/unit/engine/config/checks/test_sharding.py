from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fttui.engine.config.checks import check_config, check_experts, check_quantized, check_vision
from fttui.engine.config.schema import RunConfig


def sharded(**sections: dict[str, Any] | str) -> RunConfig:
    """A run that may be sharded; sections overridden."""
    raw: dict[str, Any] = {
        "model": {"id": "m", "quantize": "none"},
        "data": {"train": "t.jsonl"},
        "train": {"steps": 1, "devices": 2, "strategy": "fsdp"},
    }
    for name, section in sections.items():
        raw[name] = section if isinstance(section, str) else raw.get(name, {}) | section
    return msgspec.convert(raw, RunConfig)


@pytest.mark.parametrize(
    "sections",
    [
        {},
        {"adapter": {"kind": "none"}},
        {"adapter": {"init": "pissa", "rslora": True}},
        {"train": {"devices": 1, "nodes": 2}},
        {"train": {"devices": 2, "nodes": 2, "strategy": "hybrid"}},
        {"train": {"optimizer": "sgd", "momentum": 0.9, "ema": 0.9, "label_smoothing": 0.1}},
        {"model": {"precision": "bf16", "quantize": "nf4"}},
        {"train": {"activations": "host"}},
        {"model": {"quantize": "fp4", "double_quant": False}},
    ],
)
def test_what_is_supported_has_no_problems(sections: dict[str, Any]) -> None:
    assert check_config(sharded(**sections)) == []


@pytest.mark.parametrize(
    ("sections", "key", "words"),
    [
        ({"train": {"devices": 1}}, "train.strategy", "set train.devices"),
        ({"train": {"strategy": "hybrid"}}, "train.strategy", "train.nodes is 1"),
        (
            {"train": {"strategy": "hybrid", "nodes": 2, "devices": 1}},
            "train.strategy",
            "got hybrid",
        ),
        ({"task": "dpo"}, "train.strategy", "the task is dpo"),
        ({"model": {"quantize": "int8"}}, "model.quantize", "got int8"),
        ({"model": {"precision": "fp16"}}, "model.precision", "loss scale"),
        ({"model": {"attention": "flash_attention_2"}}, "model.attention", "host memory"),
        ({"model": {"add_tokens": [{"token": "<a>"}]}}, "model.add_tokens", "adds rows"),
        ({"data": {"special_tokens": ["<a>"]}}, "data.special_tokens", "adds rows"),
        ({"adapter": {"modules_to_save": ["lm_head"]}}, "adapter.modules_to_save", "lm_head"),
        ({"adapter": {"init": "eva"}}, "adapter.init", "before it is split"),
        ({"adapter": {"dora": True}}, "adapter.dora", "whole rows"),
        ({"train": {"optimizer": "muon"}}, "train.optimizer", "choose from adamw, sgd"),
        ({"train": {"optimizer": "paged_adamw_8bit"}}, "train.optimizer", "paged_adamw_8bit"),
        ({"train": {"clip_value": 1.0}}, "train.clip_value", "whole gradient"),
        ({"train": {"clip_adaptive": 0.01}}, "train.clip_adaptive", "whole gradient"),
        ({"train": {"fast": "on"}}, "train.fast", "gathers and frees"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(
    sections: dict[str, Any], key: str, words: str
) -> None:
    (problem,) = check_config(sharded(**sections))
    assert problem.key == key
    assert words in problem.text
    others = msgspec.structs.replace(sharded(**sections).train, strategy="ddp")
    if key not in ("train.fast",):
        assert check_config(msgspec.structs.replace(sharded(**sections), train=others)) == []


def test_models_that_cannot_be_split_are_refused() -> None:
    config = sharded()
    assert [one.key for one in check_experts(config)] == ["train.strategy"]
    assert [one.key for one in check_vision(config)] == ["train.strategy"]
    stored = {"quantization_config": {"quant_method": "gptq"}}
    (problem,) = check_quantized(config, stored)
    assert "quantized with gptq" in problem.text
    plain = msgspec.structs.replace(
        config, train=msgspec.structs.replace(config.train, strategy="ddp")
    )
    assert check_experts(plain) == check_vision(plain) == []
