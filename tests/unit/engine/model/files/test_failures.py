"""Errors of loading a model say what is missing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fttui.engine.config.schema import DataConfig, ModelConfig
from fttui.engine.errors import ModelError
from fttui.engine.model.tokenizer import load_tokenizer


def test_a_folder_without_a_tokenizer_is_refused_with_the_missing_files(tmp_path: Path) -> None:
    shape = {"model_type": "llama", "hidden_size": 8, "num_attention_heads": 2}
    (tmp_path / "config.json").write_text(json.dumps(shape))
    model, data = ModelConfig(id=str(tmp_path)), DataConfig(train="d.jsonl")
    with pytest.raises(ModelError, match=r"has no tokenizer .* expected tokenizer\.json"):
        load_tokenizer(model, data, lambda label, done, total: None)
