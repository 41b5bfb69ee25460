"""A model with missing, unknown or misshapen weights is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from fttui.engine.errors import ModelError
from fttui.engine.model.files.completeness import require_complete

NOTHING: dict[str, Any] = {"missing_keys": [], "unexpected_keys": [], "mismatched_keys": []}


def test_a_complete_model_passes_without_a_word() -> None:
    assert require_complete(NOTHING, "m", 2) is None


@pytest.mark.parametrize(
    ("loaded", "said"),
    [
        ({"missing_keys": ["a.weight"]}, r"m: a\.weight is not in its weight files"),
        (
            {"missing_keys": list("abcde")},
            r"a, b, c and 2 more are not in its weight files and would start from random values",
        ),
        (
            {"missing_keys": ["a"], "unexpected_keys": ["b"]},
            "the files hold unknown weights such as b",
        ),
        ({"mismatched_keys": [("a.weight", (2,), (3,))]}, r"a\.weight is of another shape"),
        (
            {"unexpected_keys": ["a.lora_A.weight"]},
            r"a\.lora_A\.weight is in its weight files, but not in a model",
        ),
        ({"unexpected_keys": ["model.layers.1.extra.weight"]}, "is in its weight files, but not"),
    ],
)
def test_what_is_not_right_is_named(loaded: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelError, match=said):
        require_complete({**NOTHING, **loaded}, "m", 2)


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.0.self_attn.rotary_emb.inv_freq",
        "h.0.attn.bias",
        "model.layers.2.embed_tokens.weight",
        "mtp.layers.0.weight",
        "vision_tower.encoder.layers.0.weight",
        "model.visual.patch_embed.weight",
    ],
)
def test_computed_values_further_heads_and_towers_may_be_left_out(name: str) -> None:
    left_out = require_complete({**NOTHING, "unexpected_keys": [name]}, "m", 2)
    assert left_out == f"1 weight, such as {name}"
