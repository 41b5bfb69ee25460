from __future__ import annotations

import json
from pathlib import Path

import pytest

from fttui.engine.config.memory.architecture import Architecture, read_architecture
from fttui.engine.errors import ModelError

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
