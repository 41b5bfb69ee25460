"""What a run is made of is named by content, whatever the folders and files are called."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from fttui.engine.config.schema import RunConfig
from fttui.engine.errors import ConfigError
from fttui.engine.run.identity import data_content
from fttui.engine.run.identity.comparison import content_identity
from fttui.engine.run.identity.content import (
    KINDS,
    ContentIdentity,
    differences,
    not_compared,
    parse_accepted,
)
from fttui.engine.run.identity.hash_cache import HashCache
from fttui.engine.run.identity.model_content import chat_templates, model_contents

TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"


def model(folder: Path) -> Path:
    """A model folder with sharded weights and what else such folders hold."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"model_type": "llama"}')
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "model-1.safetensors").write_bytes(b"first")
    (folder / "model-2.safetensors").write_bytes(b"second")
    (folder / "tokenizer.json").write_text("{}")
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": "</s>", "chat_template": TEMPLATE})
    )
    (folder / "README.md").write_text("A model.")
    (folder / "pytorch_model.bin").write_bytes(b"not loaded beside safetensors")
    return folder


@pytest.fixture
def home(tmp_path: Path) -> Path:
    model(tmp_path / "model")
    (tmp_path / "train.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n')
    (tmp_path / "held.jsonl").write_text('{"text": "three"}\n')
    return tmp_path


def config(home: Path, **data: Any) -> RunConfig:
    sections = {
        "model": {"id": str(home / "model")},
        "data": {"train": str(home / "train.jsonl"), "eval": str(home / "held.jsonl"), **data},
        "train": {"steps": 1},
    }
    return msgspec.convert(sections, RunConfig)


def identity(home: Path, **data: Any) -> ContentIdentity:
    return content_identity(config(home, **data), HashCache(home / "cache"))


def write(name: str, text: str) -> Callable[[Path], object]:
    return lambda home: (home / name).write_text(text)


def template_in_config(home: Path) -> None:
    settings = {"eos_token": "</s>", "chat_template": TEMPLATE + " "}
    (home / "model/tokenizer_config.json").write_text(json.dumps(settings))


@pytest.mark.parametrize("index", ["{}", "[]", '{"weight_map": ["a"]}', '{"weight_map": {"a": 1}}'])
def test_an_index_that_names_no_files_is_a_reason_in_place_of_a_hash(home: Path, index) -> None:
    (home / "model/model.safetensors.index.json").write_text(index)
    found = identity(home).base
    assert not found.hash
    assert "model.safetensors.index.json has no weight_map" in found.unknown


CHANGES: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "weights": (write("model/model-2.safetensors", "secone"), "base", "model-2.safetensors was"),
    "sizes": (write("model/config.json", "{}"), "base", "config.json was"),
    "own code": (
        write("model/modeling_x.py", "pass"),
        "base",
        "modeling_x.py (d74ff0ee8da3) is new",
    ),
    "vocabulary": (write("model/tokenizer.json", "[]"), "tokenizer", "tokenizer.json was"),
    "added tokens": (write("model/added_tokens.json", "{}"), "tokenizer", "added_tokens.json ("),
    "no vocabulary": (
        lambda home: (home / "model/tokenizer.json").unlink(),
        "tokenizer",
        "tokenizer.json (44136fa355b3) is missing",
    ),
    "end mark": (
        write("model/tokenizer_config.json", json.dumps({"chat_template": TEMPLATE})),
        "tokenizer",
        "tokenizer_config.json was",
    ),
    "template": (template_in_config, "template", "template default was"),
    "template file": (
        write("model/chat_template.jinja", "{{ messages }}"),
        "template",
        "template default was",
    ),
    "a line": (write("train.jsonl", '{"text": "one"}\n'), "data", "train train.jsonl was"),
    "held-out data": (write("held.jsonl", '{"text": "3"}\n'), "data", "eval held.jsonl was"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_named_by_kind_file_and_path(home: Path, change: str) -> None:
    apply, kind, text = CHANGES[change]
    before = identity(home)
    apply(home)
    (found,) = differences(before, identity(home))
    assert found.kind == kind
    assert found.text.startswith(f"{KINDS[kind]}: {text}")
    assert str(home) not in found.text, "a model card shows it"
    assert str(home) in found.place


def _move_template(home: Path) -> None:
    """As newer versions of transformers save it."""
    (home / "model/tokenizer_config.json").write_text('{"eos_token":   "</s>"}')
    (home / "model/chat_template.jinja").write_text(TEMPLATE)


SAME: dict[str, Callable[[Path], object]] = {
    "untouched": lambda home: None,
    "new times": lambda home: os.utime(home / "train.jsonl"),
    "card": write("model/README.md", "Another text."),
    "weights that are not loaded": write("model/pytorch_model.bin", "x"),
    "template in a file of its own": _move_template,
}


@pytest.mark.parametrize("change", SAME)
def test_the_same_content_is_no_change(home: Path, change: str) -> None:
    before = identity(home)
    SAME[change](home)
    assert differences(before, identity(home)) == []


def test_the_same_content_under_another_path_is_no_change(home: Path, tmp_path: Path) -> None:
    before = identity(home)
    other = tmp_path / "elsewhere"
    shutil.copytree(home / "model", other / "model")
    shutil.copy(home / "train.jsonl", other / "renamed.jsonl")
    shutil.copy(home / "held.jsonl", other / "held.jsonl")
    after = identity(other, train=str(other / "renamed.jsonl"))
    assert differences(before, after) == []


def test_the_folder_of_the_data_and_its_name_do_not_count(home: Path) -> None:
    for name in ("one", "two"):
        (home / name / "sub").mkdir(parents=True)
        (home / name / "a.jsonl").write_text("1")
        (home / name / "sub/b.jsonl").write_text("2")
        (home / name / ".hidden").write_text(name)
    before, after = (identity(home, train=str(home / name)) for name in ("one", "two"))
    assert list(before.data.parts) == [
        "train one/a.jsonl",
        "train one/sub/b.jsonl",
        "eval held.jsonl",
    ]
    assert differences(before, after) == []
    (home / "two/sub/b.jsonl").write_text("3")
    (found,) = differences(before, identity(home, train=str(home / "two")))
    assert "train two/sub/b.jsonl" in found.text


def test_files_of_a_pattern_are_parts_whatever_their_folder(home: Path, tmp_path: Path) -> None:
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
        for name in ("a", "b"):
            (folder / f"{name}.jsonl").write_text(f'{{"text": "{name}"}}\n')
    first, second = (identity(home, train=str(one / "*.jsonl")).data for one in folders)
    assert list(first.parts)[:2] == ["train *.jsonl/0 a.jsonl", "train *.jsonl/1 b.jsonl"]
    assert first.hash == second.hash != ""
    (folders[1] / "c.jsonl").write_text("{}\n")
    assert identity(home, train=str(folders[1] / "*.jsonl")).data.hash != first.hash


def test_a_large_folder_is_one_part(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_content, "MOST_PARTS", 3)
    folder = home / "many"
    folder.mkdir()
    for number in range(5):
        (folder / f"{number}.jsonl").write_text(str(number))
    before = identity(home, train=str(folder))
    assert list(before.data.parts) == ["train many/", "eval held.jsonl"]
    (folder / "3.jsonl").write_text("another")
    assert differences(before, identity(home, train=str(folder)))


def test_a_name_that_is_not_utf_8_can_be_recorded(home: Path) -> None:
    (home / "odd").mkdir()
    (home / "odd" / os.fsdecode(b"caf\xe9.jsonl")).write_text("1")
    found = identity(home, train=str(home / "odd"))
    assert msgspec.json.decode(msgspec.json.encode(found), type=ContentIdentity) == found


def test_the_order_of_a_mix_counts(home: Path) -> None:
    paths = [str(home / "train.jsonl"), str(home / "held.jsonl")]
    before, after = (
        identity(home, train=[{"path": path} for path in order]) for order in (paths, paths[::-1])
    )
    (found,) = differences(before, after)
    assert found.kind == "data"


def test_many_changes_are_counted(home: Path) -> None:
    folder = home / "many"
    folder.mkdir()
    for number in range(9):
        (folder / f"{number}.jsonl").write_text(str(number))
    before = identity(home, train=str(folder))
    for number in range(9):
        (folder / f"{number}.jsonl").write_text(f"{number}.")
    (found,) = differences(before, identity(home, train=str(folder)))
    assert found.text.endswith("6 more")


def test_what_cannot_be_read_is_unknown_and_named(home: Path) -> None:
    before = identity(home)
    after = identity(home, train=str(home / "gone.jsonl"))
    assert differences(before, after) == []
    (text,) = not_compared(before, after)
    assert text.startswith("data: ")
    assert "gone.jsonl" in text


def test_generated_pairs_are_named_by_the_version_of_python(home: Path) -> None:
    found = identity(home, train="stdlib:pairs").data
    assert found.parts["train stdlib:pairs"].startswith("Python 3.")


def test_hub_data_are_named_by_revision(home: Path) -> None:
    def of(revision: str) -> ContentIdentity:
        return content_identity(
            config(home, train="owner/texts"), HashCache(home / "cache"), lambda source: revision
        )

    assert of("a" * 40).data.parts["train owner/texts"] == "a" * 40
    assert differences(of("a" * 40), of("a" * 40)) == []
    (found,) = differences(of("a" * 40), of("b" * 40))
    assert "train owner/texts was aaaaaaaaaaaa and is now bbbbbbbbbbbb" in found.text


@pytest.fixture
def hub(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The local cache of the hub with one model at one revision."""
    repo = home / "hub" / "models--owner--tiny"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(home / "hub"))
    (repo / "refs").mkdir(parents=True)
    (repo / "refs/main").write_text("a" * 40)
    model(repo / "snapshots" / ("a" * 40))
    return repo


def hub_identity(home: Path) -> ContentIdentity:
    found = config(home)
    found = msgspec.structs.replace(
        found, model=msgspec.structs.replace(found.model, id="owner/tiny")
    )
    return content_identity(found, HashCache(home / "cache"))


def test_a_hub_model_is_named_by_its_revision(home: Path, hub: Path) -> None:
    before = hub_identity(home)
    assert before.base.revision == before.tokenizer.revision == "a" * 40
    assert differences(before, identity(home)) == [], "the same files in a folder"
    (hub / "snapshots" / ("a" * 40) / "vocab.json").write_text("fetched later by another program")
    assert differences(before, hub_identity(home)) == []
    (hub / "refs/main").write_text("b" * 40)
    new = model(hub / "snapshots" / ("b" * 40))
    (new / "README.md").write_text("Only the card changed.")
    assert differences(before, hub_identity(home)) == []
    (new / "model-1.safetensors").write_bytes(b"better")
    (found,) = differences(before, hub_identity(home))
    assert "model-1.safetensors was" in found.text
    assert f"(model.revision was {'a' * 40} and is now {'b' * 40})" in found.text


def test_a_hub_model_that_is_not_downloaded_is_unknown(home: Path, hub: Path) -> None:
    before = hub_identity(home)
    (hub / "refs/main").write_text("c" * 40)
    (hub / "snapshots" / ("c" * 40)).mkdir()
    (hub / "snapshots" / ("c" * 40) / "config.json").write_text("{}")
    after = hub_identity(home)
    assert differences(before, after) == []
    assert len(not_compared(before, after)) == 3


def test_templates_are_found_wherever_they_stand(home: Path) -> None:
    folder = home / "model"
    named = [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    assert chat_templates(folder) == {"default": "a", "tool_use": "b"}
    (folder / "chat_template.json").write_text('{"chat_template": "c"}')
    assert chat_templates(folder)["default"] == "c"
    (folder / "chat_template.jinja").write_text("d")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates/rag.jinja").write_text("e")
    assert chat_templates(folder) == {"default": "d", "tool_use": "b", "rag": "e"}


def configured(home: Path, **data: Any) -> Any:
    """A configuration with keys that change tokenizer and template."""
    return SimpleNamespace(
        model=SimpleNamespace(id=str(home / "model"), revision=None, add_tokens=[]),
        data=SimpleNamespace(**{"template": None, "special_tokens": [], **data}),
    )


def test_the_template_of_the_configuration_is_in_force(home: Path) -> None:
    """A file, a text, or a name of TRL's collection; the same text is the same template."""
    cache, text = HashCache(home / "cache"), "{{ messages }}"
    (home / "mine.jinja").write_text(text)
    _, _, own = model_contents(configured(home), cache)
    _, _, given = model_contents(configured(home, template=text), cache)
    _, _, file = model_contents(configured(home, template=str(home / "mine.jinja")), cache)
    _, _, named = model_contents(configured(home, template="qwen3"), cache)
    _, _, missing = model_contents(configured(home, template="no-such-name"), cache)
    assert given == file
    assert len({own.hash, given.hash, named.hash, missing.hash}) == 4
    assert "no-such-name" in missing.unknown


def test_tokens_that_the_configuration_adds_belong_to_the_tokenizer(home: Path) -> None:
    cache = HashCache(home / "cache")
    base, tokenizer, template = model_contents(configured(home), cache)
    after = model_contents(configured(home, special_tokens=["<tool>"]), cache)
    assert (after[0], after[2]) == (base, template)
    assert after[1].hash != tokenizer.hash
    assert "data.special_tokens" in after[1].parts


@pytest.mark.parametrize(
    ("text", "kinds"),
    [("", set()), ("base", {"base"}), (" data, base ", {"data", "base"}), ("all", set(KINDS))],
)
def test_the_accepted_kinds_are_read(text: str, kinds: set[str]) -> None:
    assert parse_accepted(text) == kinds


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'weights', expected base, tokenizer, template, data"):
        parse_accepted("base,weights")
