"""Write an exported model as a GGUF file, for the families whose layout is known here.

Weights keep their values up to the number format of the file. Every tensor of the model has to
have a place in the file, so that none is left out in silence.

Source: the GGUF specification (ggml), and the names of the package gguf.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open

from ...config.sections.gguf_formats import DirectType
from ...errors import ModelError
from ...model.progress import Progress
from .families import FAMILIES, rope_parameters, unsupported
from .vocabulary import Vocabulary, read_vocabulary

_ROTATES_PAIRS = frozenset({"LLAMA"})
"""Architectures whose rotary embeddings rotate neighbours in GGUF, but halves in transformers."""
_F16 = gguf.GGMLQuantizationType.F16
_LARGEST_F16 = 65504.0
_TYPES: dict[DirectType, tuple[str, str]] = {
    "f32": ("F32", "ALL_F32"),
    "f16": ("F16", "MOSTLY_F16"),
    "bf16": ("BF16", "MOSTLY_BF16"),
    "q8_0": ("Q8_0", "MOSTLY_Q8_0"),
}


def write_gguf(
    folder: Path,
    target: Path,
    kind: DirectType,
    name: str,
    progress: Progress,
    pooling: str | None = None,
) -> list[str]:
    """Write the model of a folder as a GGUF file; return what the file could not carry over.

    Args:
        folder: An exported model: config.json, safetensors, tokenizer.
        target: The file to create.
        kind: Number format of the matrices; vectors are f32.
        name: Of the model, for the reader of the file.
        progress: Called with (label, done, total).
        pooling: How an embedding model pools; None for a model that generates.

    Raises:
        ModelError: The model or its tokenizer cannot be written here.
    """
    settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if why := unsupported(settings):
        raise ModelError(why)
    family = FAMILIES[settings["model_type"]]
    writer = gguf.GGUFWriter(target, gguf.MODEL_ARCH_NAMES[gguf.MODEL_ARCH[family]])
    writer.add_name(name)
    _add_settings(writer, settings)
    writer.add_file_type(gguf.LlamaFileType[_TYPES[kind][1]])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    notes = _add_pooling(writer, pooling)
    _add_vocabulary(writer, folder, read_vocabulary(folder, settings["vocab_size"]))
    _write(writer, list(_tensors(folder, settings, kind)), settings, progress)
    if settings.get("sliding_window") and settings.get("use_sliding_window", True):
        notes.append(
            f"The attention window of {settings['sliding_window']:,} tokens: in llama.cpp this "
            "model attends to the whole context, so longer texts differ."
        )
    return notes


def _head_size(settings: dict[str, Any]) -> int:
    whole: int = settings["hidden_size"] // settings["num_attention_heads"]
    return settings.get("head_dim") or whole


def _add_settings(writer: Any, settings: dict[str, Any]) -> None:
    writer.add_vocab_size(settings["vocab_size"])
    writer.add_context_length(settings["max_position_embeddings"])
    writer.add_embedding_length(settings["hidden_size"])
    writer.add_feed_forward_length(settings["intermediate_size"])
    writer.add_block_count(settings["num_hidden_layers"])
    writer.add_head_count(settings["num_attention_heads"])
    heads = settings.get("num_key_value_heads") or settings["num_attention_heads"]
    writer.add_head_count_kv(heads)
    writer.add_key_length(_head_size(settings))
    writer.add_value_length(_head_size(settings))
    writer.add_rope_dimension_count(_head_size(settings))
    writer.add_layer_norm_rms_eps(settings["rms_norm_eps"])
    rope = rope_parameters(settings)
    writer.add_rope_freq_base(float(rope["rope_theta"]))
    if rope["rope_type"] in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType[rope["rope_type"].upper()])
        writer.add_rope_scaling_factor(float(rope["factor"]))
    if rope["rope_type"] == "yarn":
        trained = rope.get("original_max_position_embeddings")
        writer.add_rope_scaling_orig_ctx_len(trained or settings["max_position_embeddings"])


def _add_pooling(writer: Any, pooling: str | None) -> list[str]:
    """Write how texts are pooled; return what could not be written."""
    kinds = {"mean": gguf.PoolingType.MEAN, "last": gguf.PoolingType.LAST}
    if pooling in kinds:
        writer.add_pooling_type(kinds[pooling])
    elif pooling is not None:
        return [f"The pooling {pooling}: llama.cpp has no such pooling."]
    return []


def _add_vocabulary(writer: Any, folder: Path, vocabulary: Vocabulary) -> None:
    writer.add_tokenizer_model(vocabulary.model)
    writer.add_tokenizer_pre(vocabulary.rule)
    writer.add_token_list(vocabulary.tokens)
    if vocabulary.scores is not None:
        writer.add_token_scores(vocabulary.scores)
    writer.add_token_types([gguf.TokenType[name] for name in vocabulary.types])
    if vocabulary.space_prefix is not None:
        writer.add_add_space_prefix(vocabulary.space_prefix)
    special = gguf.SpecialVocab(
        folder, load_merges=vocabulary.scores is None, n_vocab=len(vocabulary.tokens)
    )
    special.add_to_gguf(writer, quiet=True)


@dataclass(frozen=True)
class _Tensor:
    """A tensor of the model, and its place and number format in the file."""

    file: Path
    name: str
    place: str
    shape: list[int]
    number: Any
    """A `GGMLQuantizationType`."""

    def read(self, settings: dict[str, Any]) -> NDArray[Any]:
        """Read the tensor and return its values as the file holds them.

        Raises:
            ModelError: A value is too large for f16.
        """
        with safe_open(self.file, "pt") as opened:
            values = opened.get_tensor(self.name).to(torch.float32).numpy()
        if self.number is _F16 and np.abs(values).max(initial=0) > _LARGEST_F16:
            raise ModelError(f"the weight {self.name} is too large for f16; use --gguf bf16")
        if FAMILIES[settings["model_type"]] in _ROTATES_PAIRS:
            values = _rotated(self.name, values, settings)
        return np.ascontiguousarray(gguf.quantize(values, self.number))


def _tensors(folder: Path, settings: dict[str, Any], kind: DirectType) -> Iterator[_Tensor]:
    """Yield each tensor of the model, without reading it; a head tied to the embedding is left out.

    Raises:
        ModelError: A tensor has no place in a GGUF file of this family.
    """
    architecture = gguf.MODEL_ARCH[FAMILIES[settings["model_type"]]]
    places = gguf.get_tensor_name_map(architecture, settings["num_hidden_layers"])
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "pt") as opened:
            for name in opened.keys():  # noqa: SIM118 -- the object is not a mapping
                if name == "lm_head.weight" and settings.get("tie_word_embeddings"):
                    continue
                place = places.get_name(name, try_suffixes=(".weight", ".bias"))
                if place is None:
                    raise ModelError(f"the weight {name} has no place in a GGUF of this family")
                shape = opened.get_slice(name).get_shape()
                yield _Tensor(file, name, place, shape, _number(shape, kind))


def _number(shape: list[int], kind: DirectType) -> Any:
    """Return the number format of a tensor: f32 for vectors, the one that was chosen for others.

    In place of q8_0 it is f16 if the rows cannot be divided into blocks of 32 values.
    """
    if len(shape) < 2:
        return gguf.GGMLQuantizationType.F32
    if kind == "q8_0" and shape[-1] % 32:
        return _F16
    return gguf.GGMLQuantizationType[_TYPES[kind][0]]


def _write(
    writer: Any,
    tensors: list[_Tensor],
    settings: dict[str, Any],
    progress: Progress,
) -> None:
    """Write the file, holding one tensor at a time in memory."""
    factors = (
        _llama3_factors(settings) if rope_parameters(settings)["rope_type"] == "llama3" else None
    )
    if factors is not None:
        f32 = gguf.GGMLQuantizationType.F32
        writer.add_tensor_info(
            "rope_freqs.weight", factors.shape, factors.dtype, factors.nbytes, f32
        )
    for one in tensors:
        block, size = gguf.GGML_QUANT_SIZES[one.number]
        length = math.prod(one.shape) // block * size
        writer.add_tensor_info(one.place, one.shape, np.dtype(np.float32), length, one.number)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    if factors is not None:
        writer.write_tensor_data(factors)
    for done, one in enumerate(tensors):
        writer.write_tensor_data(one.read(settings))
        progress("writing GGUF", done + 1, len(tensors))
    writer.close()


def _rotated(name: str, values: NDArray[Any], settings: dict[str, Any]) -> NDArray[Any]:
    """Reorder the rows of queries and keys, so that GGUF's pairs are the halves of the model.

    All other weights are returned unchanged.
    """
    part = name.split(".")[-2]
    heads = settings["num_attention_heads"]
    if part == "k_proj":
        heads = settings.get("num_key_value_heads") or heads
    elif part != "q_proj":
        return values
    halves = values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:])
    return halves.swapaxes(1, 2).reshape(values.shape)


def _llama3_factors(settings: dict[str, Any]) -> NDArray[np.float32]:
    """Return by how much Llama 3.1 slows each rotation: [head size / 2].

    Source: transformers, `_compute_llama3_parameters`.
    """
    rope, size = rope_parameters(settings), _head_size(settings)
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    context = rope["original_max_position_embeddings"]
    factors = []
    for pair in range(size // 2):
        length = 2 * math.pi * rope["rope_theta"] ** (2 * pair / size)
        smooth = (context / length - low) / (high - low)
        smooth = min(1.0, max(0.0, smooth))
        factors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(factors, dtype=np.float32)
