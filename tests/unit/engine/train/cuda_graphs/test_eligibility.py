from __future__ import annotations

from typing import Any

import pytest
import torch
from msgspec import structs

from fttui.engine.config.load import parse_resolved
from fttui.engine.train.cuda_graphs.eligibility import why_not

CONFIG = parse_resolved("model: {id: m}\ndata: {train: t.jsonl}\ntrain: {steps: 1, fast: static}\n")
CPU = torch.device("cpu")


def tiny(**settings: Any) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    return LlamaForCausalLM(
        LlamaConfig(vocab_size=8, num_attention_heads=1, num_key_value_heads=1, **sizes, **settings)
    )


def with_train(**values: Any) -> Any:
    return structs.replace(CONFIG, train=structs.replace(CONFIG.train, **values))


def test_nothing_stands_against_static_shapes_on_any_device() -> None:
    assert why_not(CONFIG, tiny(), CPU) is None


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (with_train(fast="auto"), "need a CUDA device"),
        (with_train(activations="host"), "on the host"),
        (structs.replace(CONFIG, model=structs.replace(CONFIG.model, attention="eager")), "eager"),
    ],
)
def test_what_stands_against_it_is_named(config: Any, words: str) -> None:
    assert words in str(why_not(config, tiny(), CPU))


def test_experts_depend_on_the_data() -> None:
    assert "experts" in str(why_not(CONFIG, tiny(num_local_experts=4), CPU))


def test_a_part_elsewhere_is_not_in_a_graph() -> None:
    model = tiny()
    model.lm_head.to("meta")
    assert "not on the device" in str(why_not(CONFIG, model, CPU))
