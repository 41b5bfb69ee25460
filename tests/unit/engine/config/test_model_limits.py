"""The limits of a model are those of its config.json."""

from __future__ import annotations

from typing import Any

import pytest

from fttui.engine.config.model_limits import ModelLimits

LLAMA: dict[str, Any] = {"vocab_size": 260, "max_position_embeddings": 1024, "model_type": "llama"}


@pytest.mark.parametrize(
    ("settings", "limits"),
    [
        (LLAMA, ModelLimits(260, 1024)),
        ({"model_type": "gemma3", "text_config": LLAMA}, ModelLimits(260, 1024)),
        (
            {"vocab_size": 5, "n_positions": 64, "model_type": "gpt2"},
            ModelLimits(5, 64, fixed=True),
        ),
        ({**LLAMA, "model_type": "opt"}, ModelLimits(260, 1024, fixed=True)),
        ({**LLAMA, "rope_scaling": None}, ModelLimits(260, 1024)),
        (
            {**LLAMA, "rope_scaling": {"type": "linear", "factor": 4}},
            ModelLimits(260, 4096),
        ),
        (
            {**LLAMA, "rope_parameters": {"rope_type": "yarn", "factor": 2.0}},
            ModelLimits(260, 2048),
        ),
        (
            {**LLAMA, "rope_parameters": {"full": {"rope_type": "linear", "factor": 8.0}}},
            ModelLimits(260, 8192),
        ),
        (
            {**LLAMA, "rope_scaling": {"rope_type": "llama3", "factor": 32.0}},
            ModelLimits(260, 1024),
        ),
        ({**LLAMA, "alibi": True}, ModelLimits(260)),
        ({"vocab_size": 7, "model_type": "mamba"}, ModelLimits(7)),
        ({}, ModelLimits()),
    ],
)
def test_limits(settings: dict[str, Any], limits: ModelLimits) -> None:
    assert ModelLimits.of(settings) == limits


@pytest.mark.parametrize(
    ("known", "rows", "then"), [(260, 262, 262), (260, 10, 260), (None, 9, None)]
)
def test_rows_are_added_but_never_taken(known: int | None, rows: int, then: int | None) -> None:
    assert ModelLimits(known, 64).with_rows(rows) == ModelLimits(then, 64)
