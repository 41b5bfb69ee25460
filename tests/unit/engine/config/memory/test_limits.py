"""The training code and the memory estimate work with the same limits."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fttui.engine.config.memory import activation_memory, limits
from fttui.engine.losses import cross_entropy, sliced
from fttui.engine.model import host_embedding
from fttui.engine.train.objectives import gradcache


@pytest.mark.parametrize(
    ("module", "name"),
    [
        (cross_entropy, "chunk_tokens_for"),
        (cross_entropy, "whole_tiles"),
        (cross_entropy, "fused_chunk_tokens_for"),
        (sliced, "SLICE_LOGITS"),
        (host_embedding, "SLICE_ELEMENTS"),
        (gradcache, "KEPT_GRAPH_BYTES"),
        (gradcache, "graph_elements_per_token"),
        (activation_memory, "chunk_tokens_for"),
        (activation_memory, "whole_tiles"),
        (activation_memory, "fused_chunk_tokens_for"),
        (activation_memory, "SLICE_LOGITS"),
        (activation_memory, "SLICE_ELEMENTS"),
        (activation_memory, "KEPT_GRAPH_BYTES"),
        (activation_memory, "graph_elements_per_token"),
    ],
)
def test_a_limit_is_the_object_of_the_limits_module(module: Any, name: str) -> None:
    assert getattr(module, name) is getattr(limits, name)


@pytest.mark.parametrize(
    ("whole", "expected"), [(0, 3 * 4), (1, 2 * 4 + 8 * 4 + 4 * 10), (5, 3 * (8 * 4 + 4 * 10))]
)
def test_a_layer_keeps_its_input_or_all_its_activations(whole: int, expected: int) -> None:
    assert limits.graph_elements_per_token(4, 10, 3, whole) == expected


@pytest.mark.parametrize("whole", [None, 1])
def test_gradcache_counts_bytes_by_the_same_formula(whole: int | None) -> None:
    shape = SimpleNamespace(num_hidden_layers=3, hidden_size=4, intermediate_size=10)
    elements = limits.graph_elements_per_token(4, 10, 3, 3 if whole is None else whole)
    assert gradcache.graph_bytes_per_token(shape, 2, whole_layers=whole) == 2 * elements
