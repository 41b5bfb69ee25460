"""How the decoder layers of an architecture differ from those of Llama in what they keep in memory.

Read in the code of transformers; every entry is compared with counted storages in
`tests/integration/test_layer_memory.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

SOFTCAPPED_SCORE_BYTES, SCORE_BYTES = 8, 6
"""Bytes per attention score that eager attention keeps in half precision: the softmax in fp32 and
its half-precision copy, and with a softcap its tanh."""


@dataclass(frozen=True)
class LayerTraits:
    """Properties of a decoder layer that decide what it keeps; the defaults are those of Llama."""

    norms: int = 2
    """Norms of the hidden states."""
    norms_last: bool = False
    """Whether attention and MLP end with a norm, whose backward pass begins while all is kept."""
    query_key_norms: bool = False
    """Whether queries and keys are normed."""
    common_norms: bool = True
    """Whether fast mode replaces the norms by a kernel that keeps no fp32 copy of its input."""
    common_norms_in_lean: bool = True
    """Whether lean mode, too, replaces the norms by such a kernel."""
    silu: bool = True
    """Whether the gate is one that fast mode recomputes in the backward pass."""
    joined_attention: bool = False
    """Whether one linear layer makes queries, keys and values."""
    joined_gate: bool = False
    """Whether one linear layer makes gate and up."""
    eager_score_bytes: int = 0
    """Bytes per attention score, if transformers chooses eager attention for the model."""
    scaled_residuals: bool = False
    """Whether outputs are scaled before they are added to the residual stream."""


_GEMMA = LayerTraits(common_norms=False, common_norms_in_lean=False, silu=False)
_POST_NORMED = LayerTraits(norms_last=True, query_key_norms=True, common_norms_in_lean=False)
_TRAITS = {
    "qwen3": LayerTraits(query_key_norms=True),
    "qwen3_moe": LayerTraits(query_key_norms=True),
    "olmoe": LayerTraits(query_key_norms=True),
    "gemma": _GEMMA,
    "gemma2": LayerTraits(
        norms=4,
        norms_last=True,
        common_norms=False,
        common_norms_in_lean=False,
        silu=False,
        eager_score_bytes=SOFTCAPPED_SCORE_BYTES,
    ),
    "gemma3_text": LayerTraits(
        norms=4,
        norms_last=True,
        query_key_norms=True,
        common_norms=False,
        common_norms_in_lean=False,
        silu=False,
    ),
    "olmo2": _POST_NORMED,
    "olmo3": _POST_NORMED,
    "exaone4": LayerTraits(norms_last=True, query_key_norms=True),
    "phi3": LayerTraits(joined_attention=True, joined_gate=True, silu=False),
    "glm": LayerTraits(joined_gate=True, silu=False),
    "glm4": LayerTraits(norms=4, norms_last=True, joined_gate=True, silu=False),
    "granite": LayerTraits(scaled_residuals=True),
    "granitemoe": LayerTraits(scaled_residuals=True),
    "bloom": LayerTraits(eager_score_bytes=SCORE_BYTES),
    "mpt": LayerTraits(eager_score_bytes=SCORE_BYTES),
    "gpt_neo": LayerTraits(eager_score_bytes=SCORE_BYTES),
    "xglm": LayerTraits(eager_score_bytes=SCORE_BYTES),
}
_LIKE = {"gemma3": "gemma3_text", "qwen3_vl": "qwen3", "qwen3_vl_text": "qwen3"}


def traits_of(kind: str) -> LayerTraits:
    """Return the properties of the layers of a model_type; those of Llama if none are known."""
    return _TRAITS.get(_LIKE.get(kind, kind), LayerTraits())
