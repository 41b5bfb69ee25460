from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from fttui.engine.config.memory.architecture import Architecture, Mixture, read_architecture
from fttui.engine.config.memory.estimate import estimate_memory
from fttui.engine.errors import ModelError
from tests.support.families import family_shape

from .test_estimate import configured

LLAMA = {
    "model_type": "llama",
    "hidden_size": 2048,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 8192,
    "vocab_size": 128256,
    "tie_word_embeddings": True,
}
SPARSE = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 768}


def test_a_folder_a_file_and_a_mapping_read_the_same(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(LLAMA))
    expected = Architecture(2048, 16, 32, 8, 64, 8192, 128256, tied=True, name="llama")
    assert read_architecture(tmp_path) == expected
    assert read_architecture(file) == expected
    assert read_architecture(LLAMA) == expected


def test_the_text_part_of_a_multimodal_model_is_read() -> None:
    nested = {"model_type": "gemma3", "text_config": LLAMA | {"head_dim": 256}}
    assert read_architecture(nested).head_dim == 256


def test_old_names_and_silent_defaults_are_understood() -> None:
    gpt2 = read_architecture(
        {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257}
    )
    assert (gpt2.intermediate, gpt2.kv_heads, gpt2.tied, gpt2.gated) == (3072, 12, True, False)
    assert set(gpt2.linears) == {"q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj"}
    silent = {key: value for key, value in LLAMA.items() if key != "tie_word_embeddings"}
    assert not read_architecture(silent).tied


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"vocab_size": None}, "vocab_size"),
        ({"num_local_experts": 8}, "8 experts"),
        ({"moe_num_experts": 8}, "8 experts"),
        ({"model_type": "mixtral", "num_local_experts": 8}, "8 experts"),
        ({"model_type": "qwen3_moe"} | SPARSE | {"mlp_only_layers": [0]}, "in every layer"),
        ({"model_type": "qwen3_moe"} | SPARSE | {"decoder_sparse_step": 2}, "in every layer"),
        ({"model_type": "deepseek_v3"} | SPARSE, "of the types granitemoe"),
    ],
)
def test_what_cannot_be_predicted_is_said(change: dict[str, object], says: str) -> None:
    with pytest.raises(ModelError, match=says):
        read_architecture(LLAMA | change)


@pytest.mark.parametrize("content", [None, "{broken", "[1, 2]"])
def test_an_unreadable_configuration_is_said(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(ModelError, match=r"config\.json"):
        read_architecture(tmp_path)


@pytest.mark.parametrize(
    ("name", "beside_language_model"),
    [("gemma-3-4b", 435_054_656), ("qwen2.5-vl-3b", 668_684_288)],
)
def test_the_weights_of_a_vision_tower_are_planned(name: str, beside_language_model: int) -> None:
    arch = read_architecture(family_shape(name))
    assert arch.tower_params == pytest.approx(beside_language_model, rel=0.05)
    config = configured()
    blind = estimate_memory(config, dataclasses.replace(arch, tower_params=0))
    assert (
        estimate_memory(config, arch).non_quantized - blind.non_quantized == 2 * arch.tower_params
    )


def test_a_joined_layer_has_one_adapter() -> None:
    joined = read_architecture(family_shape("phi-3-mini"))
    assert joined.linears["gate_up_proj"] == (3072, 2 * 8192)
    assert joined.linears["qkv_proj"] == (3072, 3 * 3072)
    assert joined.linear_params == dataclasses.replace(joined, name="llama").linear_params


def test_a_nested_configuration_without_a_type_takes_that_of_the_model() -> None:
    shape = family_shape("gemma-3-4b")
    inner = {k: v for k, v in shape["text_config"].items() if k != "model_type"}
    assert read_architecture({**shape, "text_config": inner}).traits.norms == 4


def test_the_experts_of_a_mixture_take_the_place_of_its_mlp() -> None:
    found = read_architecture(LLAMA | {"model_type": "qwen3_moe"} | SPARSE)
    assert found.mixture == Mixture(experts=8, per_token=2, width=768)
    assert set(found.linears) == {"q_proj", "k_proj", "v_proj", "o_proj"}
    assert found.expert_params == 16 * 8 * 3 * 768 * 2048
    assert read_architecture(LLAMA | {"num_experts": 1}).mixture is None


@pytest.mark.parametrize(
    ("settings", "scaled", "capped"),
    [
        ({}, False, False),
        ({"logits_scaling": 8.0}, True, False),
        ({"logits_scaling": 1.0, "logit_scale": None}, False, False),
        ({"model_type": "cohere"}, True, False),
        ({"model_type": "cohere", "logit_scale": 1}, False, False),
        ({"final_logit_softcapping": 30.0}, False, True),
        ({"model_type": "gemma2"}, False, True),
        ({"model_type": "gemma2", "final_logit_softcapping": None}, False, False),
    ],
)
def test_scaled_and_capped_logits_are_known(
    settings: dict[str, object], scaled: bool, capped: bool
) -> None:
    found = read_architecture(LLAMA | settings)
    assert (found.scaled_logits, found.capped_logits) == (scaled, capped)
