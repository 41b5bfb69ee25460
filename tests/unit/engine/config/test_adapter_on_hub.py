"""A repository of the hub that holds an adapter, and no model, is refused with what to set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import huggingface_hub
import msgspec
import pytest
from huggingface_hub.errors import EntryNotFoundError

from fttui.engine.config.memory.planning import settings_of
from fttui.engine.config.schema import RunConfig
from fttui.engine.errors import FttuiError, ModelError
from fttui.engine.model.files.failures import readable_load_errors

REPOSITORY = "ann/adapter"
ADVICE = r"holds an adapter and no model.*adapter\.start: ann/adapter"


class Missing(EntryNotFoundError, OSError):
    """What the hub answers, without a response."""


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> set[str]:
    """The names of the files in the repository."""
    names: set[str] = set()

    def download(_: str, name: str, **__: Any) -> str:
        if name not in names:
            raise Missing(f"404: {name}")
        return str(tmp_path / name)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    return names


@pytest.mark.parametrize("holds_adapter", [True, False])
def test_the_plan_says_what_to_set(files: set[str], holds_adapter: bool) -> None:
    files |= {"adapter_config.json"} if holds_adapter else set()
    raw = {"model": {"id": REPOSITORY}, "data": {"train": "d"}, "train": {"steps": 1}}
    config = msgspec.convert(raw, RunConfig)
    with pytest.raises(FttuiError, match=ADVICE if holds_adapter else "404: config.json"):
        settings_of(config)


@pytest.mark.parametrize("holds_adapter", [True, False])
def test_loading_says_what_to_set(
    files: set[str], holds_adapter: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    files |= {"adapter_config.json"} if holds_adapter else set()
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    expected = ADVICE if holds_adapter else "cannot be loaded"
    with pytest.raises(ModelError, match=expected), readable_load_errors(REPOSITORY):
        raise OSError(f"{REPOSITORY} does not appear to have a file named config.json")
