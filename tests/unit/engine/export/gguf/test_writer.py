"""A GGUF file holds every weight of the model, so that transformers computes the same from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGUFReader
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from fttui.engine.errors import ModelError
from fttui.engine.export.gguf.families import unsupported
from fttui.engine.export.gguf.writer import write_gguf
from tests.support.tiny import byte_tokenizer

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}


def no_progress(label: str, done: float, total: float) -> None:
    pass


def model_folder(folder: Path, family: str = "llama", **changes: Any) -> Path:
    tokenizer = byte_tokenizer()
    settings = {
        "vocab_size": len(tokenizer),
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "tie_word_embeddings": False,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        config = AutoConfig.for_model(family, **(settings | changes))
        model = AutoModelForCausalLM.from_config(config)
        for name, weight in model.named_parameters():
            if weight.ndim == 1:  # biases and norms begin as 0 and 1, which would hide a mistake
                torch.nn.init.normal_(weight, 1.0 if "norm" in name else 0.0, 0.2)
        model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def logits(folder: Path, **how: Any) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **how).eval()
    with torch.no_grad():
        return model(torch.arange(5, 105)[None]).logits


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {"tie_word_embeddings": True}),
        ("qwen2", {}),
        ("qwen3", {"head_dim": 128}),
        ("mistral", {"sliding_window": None}),
    ],
)
def test_the_file_computes_what_the_model_computes(
    tmp_path: Path, family: str, changes: dict[str, Any]
) -> None:
    folder = model_folder(tmp_path, family, **changes)
    assert write_gguf(folder, folder / "m.gguf", "f32", "tiny", no_progress) == []
    torch.testing.assert_close(logits(folder, gguf_file="m.gguf"), logits(folder))


def test_slowed_rotations_are_those_of_the_model(tmp_path: Path) -> None:
    folder = model_folder(tmp_path, rope_parameters=LLAMA3)
    write_gguf(folder, folder / "m.gguf", "f32", "tiny", no_progress)
    (found,) = (t for t in GGUFReader(folder / "m.gguf").tensors if t.name == "rope_freqs.weight")
    slowed = AutoModelForCausalLM.from_pretrained(folder).model.rotary_emb.inv_freq
    usual = 10000.0 ** -(torch.arange(0, 16, 2) / 16)
    torch.testing.assert_close(torch.from_numpy(found.data.copy()), usual / slowed)


def test_a_scaled_context_is_named(tmp_path: Path) -> None:
    folder = model_folder(tmp_path, rope_parameters=LINEAR)
    write_gguf(folder, folder / "m.gguf", "f32", "tiny", no_progress)
    fields = GGUFReader(folder / "m.gguf").fields
    assert fields["llama.rope.scaling.type"].contents() == "linear"
    assert fields["llama.rope.scaling.factor"].contents() == 4.0


@pytest.mark.parametrize(("kind", "bound"), [("f16", 2e-3), ("bf16", 2e-2), ("q8_0", 3e-2)])
def test_smaller_formats_only_round(tmp_path: Path, kind: Any, bound: float) -> None:
    folder = model_folder(tmp_path)
    write_gguf(folder, folder / "m.gguf", kind, "tiny", no_progress)
    found = (logits(folder, gguf_file="m.gguf") - logits(folder)).abs().max()
    assert 0 < found < bound


def test_a_window_that_llama_cpp_does_not_have_is_reported(tmp_path: Path) -> None:
    folder = model_folder(tmp_path, "mistral", sliding_window=8)
    (note,) = write_gguf(folder, folder / "m.gguf", "f32", "tiny", no_progress)
    assert "window of 8 tokens" in note


def test_a_weight_without_a_place_is_refused(tmp_path: Path) -> None:
    folder = model_folder(tmp_path)
    file = folder / "model.safetensors"
    save_file(load_file(file) | {"model.layers.0.extra.weight": torch.ones(2)}, file)
    with pytest.raises(ModelError, match=r"model\.layers\.0\.extra\.weight has no place"):
        write_gguf(folder, folder / "m.gguf", "f32", "tiny", no_progress)


def test_a_weight_too_large_for_f16_is_refused(tmp_path: Path) -> None:
    folder = model_folder(tmp_path)
    file = folder / "model.safetensors"
    weights = load_file(file)
    weights["model.embed_tokens.weight"][0, 0] = 70_000
    save_file(weights, file)
    with pytest.raises(ModelError, match="too large for f16; use --gguf bf16"):
        write_gguf(folder, folder / "m.gguf", "f16", "tiny", no_progress)


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"model_type": "gpt2"}, "of the type gpt2"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "scaled by longrope"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "a part of each head"),
    ],
)
def test_what_cannot_be_written_is_said_before(
    tmp_path: Path, change: dict[str, Any], part: str
) -> None:
    settings = json.loads((model_folder(tmp_path) / "config.json").read_text())
    assert unsupported(settings) is None
    assert part in str(unsupported(settings | change))
