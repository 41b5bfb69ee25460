"""Convert a GGUF file of a SmolLM model (Llama, GPT-2 tokenizer) to a transformers model folder.

transformers can do this as well, but it reads the file three times, which takes eight seconds each
for a vocabulary of 49,152, and it drops a part of the tokenizer's splitting rule.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...errors import ModelError
from ..progress import Progress

_SPLITTING_RULE = "smollm"
"""GGUF name of the supported pre-tokenizer."""
_CONTROL_TOKEN = 3
"""GGUF token type of special tokens."""
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_MODEL_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


def convert(source: Path, target: Path, label: str, progress: Progress) -> None:
    """Write tokenizer, configuration and fp32 weights of a GGUF file into the folder `target`.

    Raises:
        ModelError: The architecture or tokenizer of the file is not supported.
    """
    from gguf import GGUFReader
    from safetensors.numpy import save_file

    progress(label, 0, 100)
    reader = GGUFReader(source)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    _check_kind(source, fields)
    progress(label, 50, 100)
    _tokenizer(fields).save_pretrained(target)
    config = _configuration(fields, tied=all(t.name != "output.weight" for t in reader.tensors))
    config.save_pretrained(target)
    weights = {}
    for index, (name, values) in enumerate(_weights(reader, config)):
        weights[name] = values
        if index % 16 == 0:
            progress(label, 60 + 25 * index / len(reader.tensors), 100)
    progress(label, 85, 100)
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    progress(label, 100, 100)


def _check_kind(source: Path, fields: dict[str, Any]) -> None:
    kind = (fields.get("general.architecture"), fields.get("tokenizer.ggml.pre"))
    if kind != ("llama", _SPLITTING_RULE):
        raise ModelError(
            f"{source.name} has the architecture {kind[0]} and the tokenizer {kind[1]}, but only "
            f"llama with {_SPLITTING_RULE} can be converted. Use a local folder or a hub id."
        )


def _configuration(fields: dict[str, Any], *, tied: bool) -> Any:
    from transformers import LlamaConfig

    def of_model(name: str) -> Any:
        return fields[f"llama.{name}"]

    rope = {"rope_type": "default", "rope_theta": of_model("rope.freq_base")}
    return LlamaConfig(
        architectures=["LlamaForCausalLM"],
        dtype="float32",
        vocab_size=of_model("vocab_size"),
        hidden_size=of_model("embedding_length"),
        intermediate_size=of_model("feed_forward_length"),
        num_hidden_layers=of_model("block_count"),
        num_attention_heads=of_model("attention.head_count"),
        num_key_value_heads=of_model("attention.head_count_kv"),
        max_position_embeddings=of_model("context_length"),
        rms_norm_eps=of_model("attention.layer_norm_rms_epsilon"),
        rope_parameters=rope,
        tie_word_embeddings=tied,
        bos_token_id=fields["tokenizer.ggml.bos_token_id"],
        eos_token_id=fields["tokenizer.ggml.eos_token_id"],
        pad_token_id=fields["tokenizer.ggml.padding_token_id"],
    )


def _weights(reader: Any, config: Any) -> Iterator[tuple[str, Any]]:
    """Yield each tensor, dequantized to fp32, with its name in transformers."""
    import numpy as np
    from gguf import dequantize

    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type)
        part = tensor.name.split(".")[-2]
        if part in heads:
            values = _halves_from_pairs(values, heads[part])
        yield _name(tensor.name), np.ascontiguousarray(values, dtype=np.float32)


def _halves_from_pairs(values: Any, heads: int) -> Any:
    """Reorder each head's rows [head_dim, H] for rotary embeddings.

    GGUF rotates neighbours (0, 1), (2, 3), …; transformers rotates the first half of a head
    against its second half.
    """
    rows, width = values.shape
    pairs = values.reshape(heads, rows // heads // 2, 2, width)
    return pairs.swapaxes(1, 2).reshape(rows, width)


def _name(gguf_name: str) -> str:
    if gguf_name in _MODEL_NAMES:
        return _MODEL_NAMES[gguf_name]
    _, layer, part, kind = gguf_name.split(".")
    return f"model.layers.{layer}.{_LAYER_NAMES[part]}.{kind}"


def _tokenizer(fields: dict[str, Any]) -> Any:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    # Split off single digits, then apply the GPT-2 split, as when the model was trained.
    digits = pre_tokenizers.Digits(individual_digits=True)
    words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    backend.pre_tokenizer = pre_tokenizers.Sequence([digits, words])
    backend.decoder = decoders.ByteLevel()
    kinds = zip(tokens, fields["tokenizer.ggml.token_type"], strict=True)
    control = [token for token, kind in kinds if kind == _CONTROL_TOKEN]
    backend.add_special_tokens([AddedToken(token, normalized=False) for token in control])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=tokens[fields["tokenizer.ggml.bos_token_id"]],
        eos_token=tokens[fields["tokenizer.ggml.eos_token_id"]],
        unk_token=tokens[fields["tokenizer.ggml.unknown_token_id"]],
        pad_token=tokens[fields["tokenizer.ggml.padding_token_id"]],
        chat_template=fields["tokenizer.chat_template"],
        model_max_length=fields["llama.context_length"],
        padding_side="right",
        clean_up_tokenization_spaces=False,
    )
