"""The list of what transformers exports is read from a cache as long as its files are the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fttui.engine.model.files.model_list import Structure, cache_file, kept_structure

LISTED: Structure = {
    frozenset(): {"llama.configuration_llama": {"LlamaConfig"}},
    frozenset({"torch", "vision"}): {"llama.modeling_llama": {"LlamaModel", "LlamaForCausalLM"}},
}


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "models"
    (folder / "llama").mkdir(parents=True)
    file = folder / "llama" / "modeling_llama.py"
    file.write_text("__all__ = []")
    os.utime(file, (1e9, 1e9))
    return folder


def never() -> Structure:
    raise AssertionError("the files are read although nothing has changed")


def test_unchanged_files_are_not_read_again(models: Path) -> None:
    assert kept_structure(models, lambda: LISTED) == LISTED
    found = kept_structure(models, never)
    assert found == LISTED
    assert list(found) == list(LISTED)


@pytest.mark.parametrize("change", ["content", "a new file", "damage", "a changed letter"])
def test_a_change_is_noticed(models: Path, change: str) -> None:
    kept_structure(models, lambda: LISTED)
    if change == "content":
        (models / "llama" / "modeling_llama.py").write_text("__all__ = ['Other']")
    elif change == "a new file":
        (models / "llama" / "processing_llama.py").touch()
    elif change == "damage":
        cache_file().write_bytes(b'{"stamp": 3')
    else:
        cache_file().write_bytes(cache_file().read_bytes().replace(b"LlamaModel", b"LlbmaModel"))
    other: Structure = {frozenset(): {"other": {"Other"}}}
    assert kept_structure(models, lambda: other) == other


def test_files_that_may_still_change_are_not_kept(models: Path) -> None:
    (models / "llama" / "modeling_llama.py").touch()
    kept_structure(models, lambda: LISTED)
    assert not cache_file().exists()


@pytest.mark.parametrize(
    "other",
    [
        {("torch", None): {"a": {"A"}}},
        {frozenset(): {"a": ["A"]}},
        {frozenset(): {"a": {1, 2}}},
        {"a": 1},
    ],
)
def test_a_form_that_is_not_known_is_returned_as_it_is(models: Path, other: Any) -> None:
    """It is the one of another version of transformers."""
    assert kept_structure(models, lambda: other) == other
    assert kept_structure(models, lambda: other) == other
    assert not cache_file().exists()


def test_without_a_place_for_the_cache_the_files_are_read(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (models.parent / "taken").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(models.parent / "taken"))
    assert kept_structure(models, lambda: LISTED) == LISTED


CODE = """
import sys
from fttui.engine.model.files.model_list import cache_file, keep_model_list
keep_model_list()
keep_model_list()
import transformers
from pathlib import Path
from transformers.utils import import_utils
from transformers import LlamaConfig, models
folder = str(Path(transformers.__file__).parent / "models")
files = import_utils.create_import_structure_from_path(folder)
right = import_utils.spread_import_structure(files)
print(import_utils.define_import_structure(folder) == right, len(right) > 3, cache_file().exists())
print(models.llama.LlamaConfig is LlamaConfig)
print(LlamaConfig.__module__)
"""


@pytest.mark.long
def test_transformers_exports_the_same_with_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", CODE], capture_output=True, text=True, check=True
        )
        module = "transformers.models.llama.configuration_llama"
        assert done.stdout == f"True True True\nTrue\n{module}\n"
