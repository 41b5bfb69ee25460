from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from fttui.engine.config.schema import RunConfig

from ....support.tiny import tiny_llama


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("models"))


@pytest.fixture
def configured():
    """A run configuration on a model id, with sections overridden."""

    def build(model_id: object, **sections: dict[str, Any]) -> RunConfig:
        raw = {
            "model": {"id": str(model_id), "quantize": "none", **sections.pop("model", {})},
            "data": {"train": "unused.jsonl"},
            "train": {"steps": 1, **sections.pop("train", {})},
            **sections,
        }
        return msgspec.convert(raw, RunConfig)

    return build
