"""Published shapes of model families, as fields of their configurations."""

from __future__ import annotations

from typing import Any

from .shapes import SHAPES

_GEMMA_3_TOWER = {
    "model_type": "siglip_vision_model",
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "image_size": 896,
    "patch_size": 14,
}
_QWEN_2_5_TOWER = {
    "depth": 32,
    "hidden_size": 1280,
    "out_hidden_size": 2048,
    "intermediate_size": 3420,
    "num_heads": 16,
    "patch_size": 14,
    "spatial_merge_size": 2,
    "fullatt_block_indexes": [7, 15, 23, 31],
}


def _shape(kind: str, sizes: str, **more: Any) -> dict[str, Any]:
    """Return the fields of a shape.

    Args:
        kind: The model_type.
        sizes: Hidden size, width of the MLP, layers, heads, key heads and vocabulary.
        more: Other fields.
    """
    hidden, intermediate, layers, heads, key_heads, vocabulary = map(int, sizes.split())
    return {
        "model_type": kind,
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": key_heads,
        "vocab_size": vocabulary,
        **more,
    }


_TIED = {"tie_word_embeddings": True}
_UNTIED = {"tie_word_embeddings": False}

FAMILIES: dict[str, dict[str, Any]] = {
    "llama-3.2-1b": {"model_type": "llama", **SHAPES["1b"]},
    "qwen2-0.5b": _shape("qwen2", "896 4864 24 14 2 151936", **_TIED),
    "qwen2.5-1.5b": _shape("qwen2", "1536 8960 28 12 2 151936", **_TIED),
    "qwen3-1.7b": _shape("qwen3", "2048 6144 28 16 8 151936", head_dim=128, **_TIED),
    "gemma-2-2b": _shape("gemma2", "2304 9216 26 8 4 256000", head_dim=256, **_TIED),
    "gemma-3-1b": _shape("gemma3_text", "1152 6912 26 4 1 262144", head_dim=256, **_TIED,
                         sliding_window=512),
    "phi-3-mini": _shape("phi3", "3072 8192 32 32 32 32064", sliding_window=2047, **_UNTIED),
    "phi-4": _shape("phi3", "5120 17920 40 40 10 100352", **_UNTIED),
    "phi-4-mini": _shape("phi3", "3072 8192 32 24 8 200064", partial_rotary_factor=0.75, **_TIED),
    "mistral-7b": _shape("mistral", "4096 14336 32 32 8 32768", head_dim=128, sliding_window=None,
                         **_UNTIED),
    "olmo-2-1b": _shape("olmo2", "2048 8192 16 16 16 100352", **_UNTIED),
    "granite-3.3-2b": _shape("granite", "2048 8192 40 32 8 49159", **_TIED, logits_scaling=8.0,
                             residual_multiplier=0.22, embedding_multiplier=12.0),
    "smollm3-3b": _shape("smollm3", "2048 11008 36 16 4 128256", **_TIED),
    "olmoe-1b-7b": _shape("olmoe", "2048 1024 16 16 16 50304", num_experts=64,
                          num_experts_per_tok=8, **_UNTIED),
    "qwen1.5-moe-a2.7b": _shape("qwen2_moe", "2048 5632 24 16 16 151936", num_experts=60,
                                num_experts_per_tok=4, moe_intermediate_size=1408,
                                shared_expert_intermediate_size=5632, **_UNTIED),
    "qwen3-30b-a3b": _shape("qwen3_moe", "2048 6144 48 32 4 151936", head_dim=128, num_experts=128,
                            num_experts_per_tok=8, moe_intermediate_size=768, **_UNTIED),
    "granite-3.1-3b-a800m": _shape("granitemoe", "1536 512 32 24 8 49155", num_local_experts=40,
                                   num_experts_per_tok=8, **_TIED),
    "mixtral-8x7b": _shape("mixtral", "4096 14336 32 32 8 32000", num_local_experts=8,
                           num_experts_per_tok=2, **_UNTIED),
    "gemma-3-4b": {
        "model_type": "gemma3",
        "text_config": _shape("gemma3_text", "2560 10240 34 8 4 262208", head_dim=256,
                              sliding_window=1024),
        "vision_config": _GEMMA_3_TOWER,
        "mm_tokens_per_image": 256,
    },
    "qwen2.5-vl-3b": {
        "model_type": "qwen2_5_vl",
        "text_config": _shape("qwen2_5_vl_text", "2048 11008 36 16 2 151936", **_TIED),
        "vision_config": _QWEN_2_5_TOWER,
        **_TIED,
    },
}  # fmt: skip
"""Configurations by the name of the published model whose shape they have."""


def family_shape(name: str, layers: int | None = None) -> dict[str, Any]:
    """Return the configuration of a family, with this number of decoder layers if it is given."""
    shape = FAMILIES[name]
    if layers is None:
        return dict(shape)
    if "text_config" in shape:
        return {**shape, "text_config": {**shape["text_config"], "num_hidden_layers": layers}}
    return {**shape, "num_hidden_layers": layers}


def scaled_down(shape: dict[str, Any], divisor: int) -> dict[str, Any]:
    """Return a shape whose widths and vocabulary are divided, with the same number of layers."""
    widths = ("hidden_size", "intermediate_size", "head_dim", "vocab_size", "moe_intermediate_size",
              "out_hidden_size")  # fmt: skip
    small: dict[str, Any] = {}
    for key, value in shape.items():
        if isinstance(value, dict):
            small[key] = scaled_down(value, divisor)
        else:
            small[key] = value // divisor if key in widths else value
    return small
